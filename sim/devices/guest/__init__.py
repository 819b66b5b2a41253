"""A small Linux guest with the kernel's software iWARP (siw), as an RDMA peer that this project did
not write.

Kernel, siw and the RDMA programs are Debian's, unmodified. Debian's kernel leaves siw out, so the
module is built here from Debian's own kernel source. The guest runs under QEMU without root,
reaches this machine's loopback as 10.0.2.2, and ends with the program that started it.
"""
