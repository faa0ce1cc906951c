"""`baton deploy kubernetes`."""

import typer

from baton.cli import options as opt
from baton.cli.deploy.settings import DeploySettings
from baton.cli.flags import Given, with_flags

app = typer.Typer(help="Write what other systems need to run a service.")


@app.callback()
def _group() -> None:
    """Write what other systems need to run a service."""


@app.command("kubernetes")
@with_flags(DeploySettings)
def kubernetes(
    model: opt.Model = opt.DEFAULT_MODEL,
    model_path: opt.ModelPath = None,
    config: opt.Config = None,
    *,
    given: Given,
) -> None:
    """Print the manifests of a service of MODEL on Kubernetes; nothing else is done."""
    from baton.cli.deploy.kubernetes.manifests import written

    settings = given.make(DeploySettings, model=opt.one_model(model, model_path))
    typer.echo(written(settings), nl=False)
