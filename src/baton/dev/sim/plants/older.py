"""What a process of the version before is told."""

import msgspec

from baton.core.frames import Said, WrongProtocol
from baton.core.ids import Link
from baton.core.messages import Hello, Introduce, Register
from baton.core.session import session
from baton.core.session.older import as_known
from baton.core.session.session import Sessions
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant


def _everything(message: Said, protocol: int) -> Said:
    return message


def _own_number(message: Said, protocol: int) -> Said | None:
    known = as_known(message, protocol)
    if isinstance(message, Register | Introduce | Hello) and known is not None:
        return msgspec.structs.replace(known, manifest=message.manifest)
    return known


class _OneProtocol(Sessions):
    def _on_wrong_protocol(self, link: Link, frame: WrongProtocol) -> None:
        self._tell(link, "it speaks another protocol")


PLANTS = (
    Plant(
        "news_for_older_peers",
        "a process of the version before is sent messages and fields that it does not know",
        ("understood",),
        None,
        lambda: Parts(replaced=(Replaced(session, "as_known", _everything),)),
    ),
    Plant(
        "newer_manifest_passed_on",
        "a manifest states the protocol of its worker, which is newer than its reader's",
        ("liveness", "healed_succeeds", "no_spurious_failure"),
        None,
        lambda: Parts(replaced=(Replaced(session, "as_known", _own_number),)),
    ),
    Plant(
        "newest_protocol_only",
        "whoever dials a process of the version before never says Open in its protocol",
        ("liveness", "healed_succeeds", "no_spurious_failure"),
        None,
        lambda: Parts(sessions=_OneProtocol),
    ),
)
