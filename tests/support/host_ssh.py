"""The files of ssh between test hosts: keys, what both sides are configured with, and an `ssh` that reads it."""

import shlex
import subprocess

from tests.support.namespaces import HOST_ENV, SYSTEM_PATH, WAIT_S, tool

ENDED = "closed by remote host|Connection reset by|Broken pipe"
"""What ssh says when the other side ends a connection: the last two when it was just writing."""


class SshFiles:
    """A folder with all that sshd and ssh read, so that nothing of the machine's own is read or written."""

    def __init__(self, folder, addresses, port):
        self.folder, self.addresses, self.port = folder, addresses, port
        self.config = folder / "ssh_config"
        self.bin = folder / "bin"

    def write(self):
        """Write everything, with new keys."""
        self.bin.mkdir(parents=True, exist_ok=True)
        self.make_keys("id", *self.addresses)
        (self.folder / "authorized_keys").write_bytes((self.folder / "id.pub").read_bytes())
        self.trust(*self.addresses)
        self._write_server()
        self._write_client()
        for name in ("ssh", "scp", "sftp"):
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec {tool(name)} -F {shlex.quote(str(self.config))} "$@"\n')
            script.chmod(0o755)

    def make_keys(self, *names):
        """Make a new pair of keys for each name, all at once."""
        command = [tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        makers = [subprocess.Popen([*command, self.folder / name], stdin=subprocess.DEVNULL) for name in names]
        assert [maker.wait(WAIT_S) for maker in makers] == [0] * len(makers)

    def trust(self, *names):
        """Let launchers know the host keys of these hosts, and forget those of all others."""
        lines = []
        for name in names:
            places = [name, self.addresses[name]]
            places = places if self.port == 22 else [f"[{place}]:{self.port}" for place in places]
            lines.append(f"{','.join(places)} {(self.folder / f'{name}.pub').read_text()}")
        (self.folder / "known_hosts").write_text("".join(lines))

    def server(self, name, log):
        """Give the command that starts a host's sshd."""
        return [tool("sshd"), "-f", f"{self.folder / 'sshd_config'}", "-h", f"{self.folder / name}", "-E", str(log)]

    def _write_server(self):
        (self.folder / "sshd_config").write_text(
            f"Port {self.port}\n"
            "AddressFamily inet\n"
            "PidFile none\n"
            f'AuthorizedKeysFile "{self.folder / "authorized_keys"}"\n'
            "StrictModes no\n"
            "UsePAM no\n"
            "PermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\n"
            "PermitUserRC no\n"
            "PrintLastLog no\n"
            f"SetEnv PATH={SYSTEM_PATH} LANG={HOST_ENV['LANG']}\n"
        )

    def _write_client(self):
        named = "".join(f"Host {name}\n  HostName {address}\n" for name, address in self.addresses.items())
        self.config.write_text(
            f"{named}"
            "Host *\n"
            f'  IdentityFile "{self.folder / "id"}"\n'
            "  IdentitiesOnly yes\n"
            "  StrictHostKeyChecking yes\n"
            f'  UserKnownHostsFile "{self.folder / "known_hosts"}"\n'
            "  GlobalKnownHostsFile /dev/null\n"
        )
