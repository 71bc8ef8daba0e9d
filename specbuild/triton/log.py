"""Python's log, written into Triton's."""

from __future__ import annotations

import logging
from typing import Any


class TritonLog(logging.Handler):
    """Takes what ``specbuild`` logs, from warnings on."""

    def __init__(self, logger: Any) -> None:
        """``logger``: ``pb_utils.Logger``, which queues a line and does not wait."""
        super().__init__(logging.WARNING)
        self._logger = logger

    def open(self) -> None:
        """From now on."""
        logging.getLogger("specbuild").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        write = self._logger.log_error if record.levelno >= logging.ERROR else self._logger.log_warn
        write(self.format(record))

    def close(self) -> None:
        """No more."""
        logging.getLogger("specbuild").removeHandler(self)
        super().close()
