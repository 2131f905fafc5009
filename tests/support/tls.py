"""A PostgreSQL server that takes nothing but TLS, with a certificate authority of its own.

The embedded server has no TLS, so this one is the system's (Debian's package ``postgresql``).
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import make_conninfo

from tests.support.need import need, need_program
from tests.support.postgres import Postgres
from tests.support.programs import system_programs


class Authority:
    """A certificate authority in a folder; ``certificate`` is what a client has to trust."""

    def __init__(self, folder: Path, name: str = "Test authority") -> None:
        self._folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"
        self._openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", str(self._key), "-out", str(self.certificate)),
        )

    def issue(self, names: Sequence[str]) -> tuple[Path, Path]:
        """Certificate and key of a server that answers to these DNS names and IPv4 addresses."""
        stem = self._folder / names[0]
        request, extensions = stem.with_name(f"{names[0]}.csr"), stem.with_name(f"{names[0]}.ext")
        certificate, key = stem.with_name(f"{names[0]}.crt"), stem.with_name(f"{names[0]}.key")
        kinds = ("IP" if name.replace(".", "").isdigit() else "DNS" for name in names)
        extensions.write_text(
            "subjectAltName=" + ",".join(f"{kind}:{name}" for kind, name in zip(kinds, names, strict=True)) + "\n"
        )
        subject = f"/CN={names[0]}"
        self._openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", str(key), "-out", str(request)
        )
        self._openssl(
            *("x509", "-req", "-in", str(request), "-days", "2", "-extfile", str(extensions), "-CAcreateserial"),
            *("-CA", str(self.certificate), "-CAkey", str(self._key), "-out", str(certificate)),
        )
        return certificate, key

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(
            [need_program("openssl"), *arguments], cwd=self._folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr}")


@dataclass(frozen=True)
class TlsServer:
    server: Postgres
    authority: Authority

    @property
    def root(self) -> Path:
        """The file for ``sslrootcert``."""
        return self.authority.certificate

    def url(self, *, host: str = "localhost", sslmode: str = "verify-full", **words: str) -> str:
        """A connection string that trusts the server's own authority, unless ``sslrootcert`` says otherwise."""
        words = {"sslrootcert": str(self.root), **words}
        return make_conninfo(self.server.url(), host=host, sslmode=sslmode, **words)


@contextmanager
def tls_server(names: Sequence[str] = ("localhost",)) -> Iterator[TlsServer]:
    """A running server whose certificate has these names. It refuses connections without TLS."""
    programs = system_programs()
    need(programs, "no PostgreSQL server with TLS on this machine: apt install postgresql")
    assert programs is not None
    with tempfile.TemporaryDirectory(prefix="tls-") as folder:
        authority = Authority(Path(folder))
        # Clients of other accounts are to read it.
        Path(folder).chmod(0o755)
        certificate, key = authority.issue(names)
        server = Postgres({"ssl": "on"}, programs=programs)
        for source, name in ((certificate, "server.crt"), (key, "server.key")):
            target = server.data / name
            target.write_bytes(source.read_bytes())
            target.chmod(0o600)
            server.give(target)
        (server.data / "pg_hba.conf").write_text("local all all trust\nhostssl all all samehost trust\n")
        with server:
            yield TlsServer(server, authority)
