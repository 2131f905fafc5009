"""Notices another distribution that has put a package of this name into the same folder."""

from __future__ import annotations

import os


def warn_of_twin(package: str) -> None:
    """Warns if ``pg-advisory-lock``, which is another project, is installed beside the package folder ``package``.

    pip writes the files of one over those of the other without a question. What is then imported may be a mixture, and
    removing either distribution removes files of both.
    """
    try:
        names = os.listdir(os.path.dirname(package))  # noqa: PTH208, PTH120 - pathlib would cost a start more than this
    except OSError:
        # Not a folder but, for example, an archive, into which pip installs nothing.
        return
    twins = [name for name in names if name.startswith("pg_advisory_lock-") and name.endswith(".dist-info")]
    if twins:
        import warnings

        from pg_advisory_lock.errors import PgAdvisoryLockWarning

        warnings.warn(
            f"{twins[0].removesuffix('.dist-info')} is installed in the same folder as dislock, and both have a package"
            " pg_advisory_lock: one has overwritten files of the other; uninstall both, then install the one you mean",
            PgAdvisoryLockWarning,
            stacklevel=2,
        )
