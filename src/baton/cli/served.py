"""Finds the URL and the model of a running service."""

from baton.core.errors import BatonError


def root_url(url: str | None) -> str | None:
    """Normalise a service's URL, which may lack http:// or end in /v1; None stays None."""
    if url is None:
        return None
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


def first_model(base_url: str, api_key: str | None) -> str:
    """Return the name of the first model that a service offers. Raises BatonError."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    url = f"{base_url.rstrip('/')}/v1/models"
    try:
        answer = httpx.get(url, headers=headers, timeout=10)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise BatonError(f"{url}: {error}; is a service running there?") from error
    except (ValueError, LookupError, TypeError) as error:
        raise BatonError(
            f"{url} does not list models as OpenAI does; name one with --model"
        ) from error
