# claim: a bomb in compressed form
# expect: killed: memory | timeout
import zlib
def solve(x):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    megabyte = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return len(zlib.decompress(megabyte * 4000, -15))
