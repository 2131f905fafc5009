"""What <folder>/dislock runs in the folder's own interpreter, with -I and -S, so without the site module."""

# os.path is loaded already; pathlib would cost a third of the start.
# ruff: noqa: PTH100, PTH120, PTH123
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: How the launcher hides a variable from the loader: its first byte. See launcher.c.
HIDDEN = b"\x01D_"
#: Where images have certificates, the same list as in dislock.drivers.targets. These come before the folder's own.
CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
)

sys.path.append(f"{ROOT}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")


def reveal(environment: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The environment as the launcher got it, in the same order: /proc shows it as the loader got it."""
    return {b"L" + name[1:] if name.startswith(HIDDEN) else name: value for name, value in environment.items()}


def put_back_hidden() -> None:
    """Restores the variables that the loader must not see. The loader of this process has finished."""
    for name in [name for name in os.environb if name.startswith(HIDDEN)]:
        os.environb[b"L" + name[1:]] = os.environb.pop(name)


def main() -> None:
    arguments = sys.argv[1:]
    try:
        # Otherwise ps, top and the kernel's own messages would show the loader's name.
        with open("/proc/self/comm", "w") as comm:
            comm.write("dislock")
    except OSError:
        pass
    if arguments[:1] == ["--install"]:
        import dislock_install

        sys.exit(dislock_install.main(ROOT, arguments[1:]))
    hidden = any(name.startswith(HIDDEN) for name in os.environb)
    if hidden:
        put_back_hidden()
    if arguments[:1] == ["--python"]:
        python = f"{ROOT}/bin/python3"
        os.execv(python, [python, *arguments[1:]])
    if "SSL_CERT_FILE" not in os.environ and not any(map(os.path.isfile, CERTIFICATES)):
        # For sslrootcert=system. The command does not get this variable: its environment is read from /proc.
        os.environ["SSL_CERT_FILE"] = f"{ROOT}/ssl/cert.pem"
    try:
        from dislock.cli import entry

        environment = None
        if hidden:
            from dislock.process.environment import original_environment

            environment = reveal(original_environment())
    except KeyboardInterrupt:
        sys.exit(130)  # nothing was started; from `entry` on, signals are held back
    entry(environment)


main()
