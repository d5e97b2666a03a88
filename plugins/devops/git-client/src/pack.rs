//! Packs of one object (gitformat-pack), and the objects in them.

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// Limit of an object: larger than the definition of any pipeline, and than the tree of any folder with one.
const MAX_OBJECT_BYTES: usize = 4 << 20;

/// Signature, version 2 and one object.
const SINGLE_HEADER: &[u8; 12] = b"PACK\0\0\0\x02\0\0\0\x01";
/// Bytes of the checksum after the objects. TLS already protects the transfer.
const CHECKSUM_BYTES: usize = 20;
/// Bytes of an object's id in a tree.
const ID_BYTES: usize = 20;

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A commit.
    Commit,
    /// A folder.
    Tree,
    /// A file.
    Blob,
    /// An annotated tag, a submodule or a link.
    Other,
}

impl ObjectKind {
    /// The name that git gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
            Self::Other => "tag",
        }
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackObject {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its content.
    pub data: Vec<u8>,
}

/// Parses a pack of one object, which is no delta: its base would have to be in the pack.
///
/// # Errors
/// The pack is malformed, has another number of objects, or one that is too large.
pub fn parse_single(pack: &[u8]) -> Result<PackObject, String> {
    let malformed = || "the pack is malformed".to_owned();
    let rest = pack
        .strip_prefix(SINGLE_HEADER)
        .ok_or("the pack does not consist of one object")?;
    let end = rest.len().checked_sub(CHECKSUM_BYTES).ok_or_else(malformed)?;
    let mut bytes = rest[..end].iter();
    let first = *bytes.next().ok_or_else(malformed)?;
    let kind = match (first >> 4) & 7 {
        1 => ObjectKind::Commit,
        2 => ObjectKind::Tree,
        3 => ObjectKind::Blob,
        4 => ObjectKind::Other,
        _ => return Err("the object is a delta".into()),
    };
    let mut size = u64::from(first & 15);
    let mut shift = 4;
    let mut byte = first;
    while byte & 0x80 != 0 {
        byte = *bytes.next().ok_or_else(malformed)?;
        if shift > 50 {
            return Err(malformed());
        }
        size |= u64::from(byte & 0x7f) << shift;
        shift += 7;
    }
    if size > MAX_OBJECT_BYTES as u64 {
        return Err(format!("an object of {size} bytes is too large"));
    }
    let data =
        decompress_to_vec_zlib_with_limit(bytes.as_slice(), MAX_OBJECT_BYTES).map_err(|_| malformed())?;
    if data.len() as u64 != size {
        return Err(malformed());
    }
    Ok(PackObject { kind, data })
}

/// The id of a commit's tree.
///
/// # Errors
/// The commit is malformed.
pub fn tree_of_commit(commit: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(commit);
    let tree = text.lines().next().and_then(|line| line.strip_prefix("tree "));
    tree.map(str::to_owned)
        .ok_or_else(|| "a commit is malformed".into())
}

/// Id and kind of an entry of a tree.
///
/// # Errors
/// The tree is malformed.
pub fn find_entry(tree: &[u8], name: &[u8]) -> Result<Option<(String, ObjectKind)>, String> {
    let malformed = || "a tree is malformed".to_owned();
    let mut rest = tree;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == 0).ok_or_else(malformed)?;
        let (head, after) = (&rest[..end], &rest[end + 1..]);
        let (id, after) = after.split_at_checked(ID_BYTES).ok_or_else(malformed)?;
        let space = head.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
        if &head[space + 1..] == name {
            let kind = match &head[..space] {
                b"40000" => ObjectKind::Tree,
                b"100644" | b"100755" | b"100664" => ObjectKind::Blob,
                _ => ObjectKind::Other,
            };
            let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
            return Ok(Some((id, kind)));
        }
        rest = after;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use miniz_oxide::deflate::compress_to_vec_zlib;

    use super::*;

    fn pack(kind: u8, size: usize, data: &[u8]) -> Vec<u8> {
        let mut pack = SINGLE_HEADER.to_vec();
        let mut rest = size >> 4;
        let more = |rest: usize| if rest > 0 { 0x80 } else { 0 };
        pack.push((kind << 4) | u8::try_from(size & 15).expect("small") | more(rest));
        while rest > 0 {
            pack.push(u8::try_from(rest & 0x7f).expect("small") | more(rest >> 7));
            rest >>= 7;
        }
        pack.extend(compress_to_vec_zlib(data, 6));
        pack.extend([0; CHECKSUM_BYTES]);
        pack
    }

    #[test]
    fn pack_of_one_object_is_parsed() {
        for size in [0, 15, 16, 5000] {
            let data = vec![b'x'; size];
            let object = parse_single(&pack(3, size, &data)).expect("an object");
            assert_eq!((object.kind, object.data), (ObjectKind::Blob, data));
        }
    }

    #[test]
    fn other_packs_are_refused() {
        let good = pack(3, 4, b"data");
        let mut two = good.clone();
        two[11] = 2;
        let long = [&SINGLE_HEADER[..], &[0xff; 40]].concat();
        for wrong in [
            &good[..10],
            &good[..20],
            &two,
            &pack(6, 4, b"data"),
            &pack(3, 5, b"data"),
            &pack(3, MAX_OBJECT_BYTES + 1, b"data"),
            &long,
            b"",
        ] {
            assert!(parse_single(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn entry_of_tree_is_found_by_its_whole_name() {
        let mut tree = b"100644 a.yaml\0".to_vec();
        tree.extend([1; ID_BYTES]);
        tree.extend(b"40000 a\0");
        tree.extend([2; ID_BYTES]);
        tree.extend(b"120000 link\0");
        tree.extend([3; ID_BYTES]);
        let find = |name: &str| find_entry(&tree, name.as_bytes()).expect("a tree");
        assert_eq!(find("a"), Some(("02".repeat(20), ObjectKind::Tree)));
        assert_eq!(find("a.yaml"), Some(("01".repeat(20), ObjectKind::Blob)));
        assert_eq!(find("link"), Some(("03".repeat(20), ObjectKind::Other)));
        assert_eq!(find("b"), None);
        assert!(find_entry(&tree[..20], b"zz").is_err(), "cut off");
    }

    #[test]
    fn tree_of_commit_is_its_first_line() {
        assert_eq!(tree_of_commit(b"tree abc\nparent d\n"), Ok("abc".into()));
        assert!(tree_of_commit(b"parent d\n").is_err());
    }
}
