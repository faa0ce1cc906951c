"""The folders of a container: its root file system is read-only, so all that is written is here."""

from collections.abc import Sequence

import msgspec

from baton.cli.deploy.kubernetes import layout
from baton.cli.deploy.kubernetes.api import ClaimSource, SecretSource, Volume, VolumeMount
from baton.cli.deploy.settings import MODELS, DeploySettings

SECRET_MODE = 0o400  # Kubernetes adds the group's right to read, for PodSecurity.fs_group


class Folder(msgspec.Struct, frozen=True):
    """A volume of the pod, and where its containers find it."""

    volume: Volume
    path: str
    read_only: bool | None = None

    @property
    def mount(self) -> VolumeMount:
        """The folder in a container."""
        return VolumeMount(name=self.volume.name, mount_path=self.path, read_only=self.read_only)


def worker_folders(settings: DeploySettings) -> Sequence[Folder]:
    """Return what every pod has: a cache, a temporary folder, the cluster's key, and models."""
    found = [
        Folder(Volume(name="cache", empty_dir={}), layout.HOME),
        Folder(Volume(name="tmp", empty_dir={}), "/tmp"),
        _of_secret("secret", settings.key_secret, layout.SECRET_FOLDER),
    ]
    if settings.model_claim is not None:
        claim = ClaimSource(claim_name=settings.model_claim, read_only=True)
        volume = Volume(name="models", persistent_volume_claim=claim)
        found.append(Folder(volume, MODELS, read_only=True))
    return found


def gateway_folders(settings: DeploySettings) -> Sequence[Folder]:
    """Return what a gateway's pod has: the same, and the keys of clients."""
    found = worker_folders(settings)
    if settings.api_key_secret is None:
        return found
    return [*found, _of_secret("api-keys", settings.api_key_secret, layout.API_KEY_FOLDER)]


def _of_secret(name: str, secret: str, path: str) -> Folder:
    source = SecretSource(secret_name=secret, default_mode=SECRET_MODE)
    return Folder(Volume(name=name, secret=source), path, read_only=True)
