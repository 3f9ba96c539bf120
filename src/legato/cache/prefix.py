"""Names for what a block holds: its own tokens and all that come before them."""

from collections.abc import Callable
from hashlib import sha256
from weakref import ref

__all__ = ["Digest", "Prefix", "PrefixIndex", "sha256_digest"]

Digest = Callable[[bytes], bytes]


def sha256_digest(data: bytes) -> bytes:
    return sha256(data).digest()


class Prefix:
    """All tokens of a sequence up to the end of one full block, with the adapter and salt that they are computed under.

    Two prefixes are the same only if they are the same object. `known`: where to strike it out when it goes.
    """

    __slots__ = ("__weakref__", "_known", "content", "digest", "parent")

    def __init__(
        self, parent: "Prefix | None", content: bytes, digest: bytes, known: "dict[bytes, ref[Prefix]]"
    ) -> None:
        self.parent = parent
        self.content = content  # the tokens of the last block, 'i' each; for the root: adapter and salt
        self.digest = digest
        self._known = known

    def __del__(self) -> None:
        self._known.pop(self.digest, None)


class PrefixIndex:
    """Makes prefixes, so that equal ones are one object: comparing objects then compares all that they stand for.

    They are found by a digest chained over the blocks, and their content is compared. Whatever the digest, different
    prefixes never become one; those whose digests are equal by chance or on purpose are merely not shared. A prefix is
    known as long as a block, a sequence or a longer prefix refers to it.
    """

    def __init__(self, digest: Digest = sha256_digest) -> None:
        self._digest = digest
        self._known: dict[bytes, ref[Prefix]] = {}  # a WeakValueDictionary would do, at three times the cost

    def __len__(self) -> int:
        return len(self._known)

    def root(self, adapter: int, salt: str) -> Prefix:
        """The prefix without tokens."""
        return self._make(None, adapter.to_bytes(8, "little", signed=True) + salt.encode(errors="surrogatepass"))

    def extend(self, parent: Prefix, content: bytes) -> Prefix:
        """`parent` and the tokens of one more block."""
        return self._make(parent, content)

    def _make(self, parent: Prefix | None, content: bytes) -> Prefix:
        digest = self._digest(content if parent is None else parent.digest + content)
        reference = self._known.get(digest)
        known = None if reference is None else reference()
        if known is None:
            known = Prefix(parent, content, digest, self._known)
            self._known[digest] = ref(known)
        elif known.parent is not parent or known.content != content:
            return Prefix(parent, content, digest, {})
        return known
