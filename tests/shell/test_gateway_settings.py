"""The settings of a gateway, and the core that they are for."""

from typing import get_args, get_type_hints

import msgspec

from baton.core.gateway.request import FrontSettings
from baton.core.gateway.routing_policy import POLICIES
from baton.shell.gateway_settings import GatewaySettings


def test_an_operator_may_choose_every_routing_policy_that_there_is_and_no_other() -> None:
    choices = get_args(get_type_hints(GatewaySettings)["routing_policy"])
    assert set(choices) == set(POLICIES)
    assert len(choices) == len(POLICIES)


def test_where_nobody_chooses_the_core_and_the_command_take_the_same_policy() -> None:
    fields = {field.name: field.default for field in msgspec.structs.fields(GatewaySettings)}
    assert FrontSettings().routing_policy == fields["routing_policy"]
