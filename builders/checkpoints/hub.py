"""``hf:ORG/NAME[@revision]``: a checkpoint from the Hugging Face hub, or from its cache."""

from __future__ import annotations

from pathlib import Path

from specbuild.errors import CheckpointError, EnvironmentLacksError, UsageError

WANTED = ["*.safetensors", "*.json", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]
"""Subfolders and second copies of the weights in another layout."""


def download(reference: str) -> Path:
    """The local folder of ``ORG/NAME[@revision]``, downloaded unless the cache has it; HF_HUB_OFFLINE is honoured.

    Raises:
        UsageError: ``reference`` is not of that form.
        EnvironmentLacksError: the hub cannot be reached and the cache lacks the model.
        CheckpointError: the hub has no such model or revision, or does not let this user have it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    repository, _, revision = reference.partition("@")
    if repository.count("/") != 1:
        raise UsageError(f"hf:{reference}: not of the form hf:ORG/NAME or hf:ORG/NAME@REVISION")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    except HFValidationError as error:
        raise UsageError(f"hf:{reference}: {error}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise EnvironmentLacksError(
            f"hf:{reference}: not in the cache, and the hub cannot be reached (offline or no network); "
            "download it where there is one and name the folder"
        ) from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no answer")
        raise CheckpointError(
            f"hf:{reference}: the hub refused it ({type(error).__name__}, status {status}); "
            "check the name, the revision and `hf auth login`"
        ) from error
    except Exception as error:  # the HTTP library below, and so its errors, differ by the hub client's version
        raise EnvironmentLacksError(
            f"hf:{reference}: the download failed ({type(error).__name__}: {error}); try again or name a folder"
        ) from error
