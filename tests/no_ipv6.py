"""`python no_ipv6.py COMMAND...`: runs it as on a kernel that was booted with `ipv6.disable=1`.

A seccomp filter answers socket(AF_INET6, ...) as that kernel does: the address family is not
supported. It needs no rights, and holds for the command and all that it starts.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

SOCKET_CALL = {"x86_64": 41, "aarch64": 198}  # its number
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2  # of prctl
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of BPF
NUMBER_AT, FIRST_ARGUMENT_AT = 0, 16  # in what a filter sees of a call
FAIL_WITH, ALLOW = 0x0005_0000, 0x7FFF_0000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def forbid() -> None:
    """From now on this process and its children have no IPv6."""
    instructions = [
        (LOAD, 0, 0, NUMBER_AT),
        (JUMP_IF_EQUAL, 0, 3, SOCKET_CALL[platform.machine()]),
        (LOAD, 0, 0, FIRST_ARGUMENT_AT),
        (JUMP_IF_EQUAL, 0, 1, socket.AF_INET6),
        (RETURN, 0, 0, FAIL_WITH | errno.EAFNOSUPPORT),
        (RETURN, 0, 0, ALLOW),
    ]
    packed = b"".join(struct.pack("HBBI", *each) for each in instructions)
    code = ctypes.create_string_buffer(packed)
    program = _Program(len(instructions), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in (
        (NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*words):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
