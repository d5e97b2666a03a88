//! DNS messages (RFC 1035, section 4): a query for one name and type, and the values in the answer.
//!
//! Own code, since the crates for DNS are several times as large as this component.

use std::net::{Ipv4Addr, Ipv6Addr};

use dns_api::RecordType;

const CLASS_IN: u16 = 1;
const HEADER_BYTES: usize = 12;
/// Compression pointers followed in one name.
const MAX_POINTERS: usize = 32;

/// The answer to a query.
#[derive(Debug, PartialEq, Eq)]
pub struct QueryAnswer {
    /// Response code; 0 is no error, 3 no such name.
    pub code: u8,
    /// Values of the records of the type, in canonical form.
    pub values: Vec<String>,
}

fn type_code(kind: RecordType) -> u16 {
    match kind {
        RecordType::A => 1,
        RecordType::CNAME => 5,
        RecordType::MX => 15,
        RecordType::TXT => 16,
        RecordType::AAAA => 28,
        RecordType::SRV => 33,
    }
}

/// A query with recursion. Its ID is 0, so that caches can serve it (RFC 8484, section 4.1).
pub fn encode_query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut query = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        query.push(u8::try_from(label.len()).unwrap_or_default());
        query.extend_from_slice(label.as_bytes());
    }
    query.push(0);
    query.extend_from_slice(&type_code(kind).to_be_bytes());
    query.extend_from_slice(&CLASS_IN.to_be_bytes());
    query
}

/// Base64 for URLs without padding (RFC 4648, section 5).
pub fn encode_base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or_default());
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for index in 0..=chunk.len() {
            let sextet = bits >> (18 - 6 * index) & 63;
            text.push(char::from(ALPHABET[sextet as usize]));
        }
    }
    text
}

/// Reads the records of a type in a response; none if it is malformed.
pub fn decode_answer(message: &[u8], kind: RecordType) -> Option<QueryAnswer> {
    let mut reader = Reader {
        message,
        at: HEADER_BYTES,
    };
    let is_response = message.get(2)? & 0x80 != 0;
    if !is_response {
        return None;
    }
    let count = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let (questions, answers) = (count(4)?, count(6)?);
    for _ in 0..questions {
        reader.read_name()?;
        reader.skip(4)?;
    }
    let mut values = Vec::new();
    for _ in 0..answers {
        reader.read_name()?;
        let (code, _class) = (reader.read_u16()?, reader.read_u16()?);
        reader.skip(4)?;
        let end = usize::from(reader.read_u16()?) + reader.at;
        if end > message.len() {
            return None;
        }
        if code == type_code(kind) {
            values.push(reader.read_value(kind, end)?);
        }
        reader.at = end;
    }
    Some(QueryAnswer {
        code: message.get(3)? & 15,
        values,
    })
}

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.at = self.at.checked_add(bytes)?;
        (self.at <= self.message.len()).then_some(())
    }

    fn read_u8(&mut self) -> Option<u8> {
        let byte = *self.message.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn read_u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.read_u8()?, self.read_u8()?]))
    }

    fn read_bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.message.get(self.at..self.at + N)?;
        self.at += N;
        bytes.try_into().ok()
    }

    /// A name in canonical form; `.` is the root.
    fn read_name(&mut self) -> Option<String> {
        let mut name = String::new();
        let mut resume = None;
        let mut pointers = 0;
        loop {
            let length = self.read_u8()?;
            if length & 0xc0 == 0xc0 {
                let low = self.read_u8()?;
                resume.get_or_insert(self.at);
                self.at = usize::from(length & 0x3f) << 8 | usize::from(low);
                pointers += 1;
                if pointers > MAX_POINTERS {
                    return None;
                }
                continue;
            }
            if length == 0 {
                break;
            }
            let label = self.message.get(self.at..self.at + usize::from(length))?;
            self.at += usize::from(length);
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(&String::from_utf8_lossy(label).to_ascii_lowercase());
        }
        if let Some(at) = resume {
            self.at = at;
        }
        Some(if name.is_empty() { ".".into() } else { name })
    }

    /// The data of a record, in canonical form.
    fn read_value(&mut self, kind: RecordType, end: usize) -> Option<String> {
        Some(match kind {
            RecordType::A => Ipv4Addr::from(self.read_bytes::<4>()?).to_string(),
            RecordType::AAAA => Ipv6Addr::from(self.read_bytes::<16>()?).to_string(),
            RecordType::CNAME => self.read_name()?,
            RecordType::MX => format!("{} {}", self.read_u16()?, self.read_name()?),
            RecordType::SRV => {
                let (priority, weight, port) = (self.read_u16()?, self.read_u16()?, self.read_u16()?);
                format!("{priority} {weight} {port} {}", self.read_name()?)
            }
            RecordType::TXT => {
                let mut text = Vec::new();
                while self.at < end {
                    let length = usize::from(self.read_u8()?);
                    text.extend_from_slice(self.message.get(self.at..self.at + length)?);
                    self.at += length;
                }
                String::from_utf8_lossy(&text).into_owned()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response with the question at offset 12 and answers whose names point to it.
    fn response(kind: u16, code: u8, data: &[&[u8]]) -> Vec<u8> {
        let mut message = encode_query("app.example.com", RecordType::A);
        message[2] |= 0x80;
        message[3] = code;
        message[7] = u8::try_from(data.len()).expect("few");
        for data in data {
            message.extend_from_slice(&[0xc0, 12]);
            message.extend_from_slice(&kind.to_be_bytes());
            message.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
            message.extend_from_slice(&u16::try_from(data.len()).expect("short").to_be_bytes());
            message.extend_from_slice(data);
        }
        message
    }

    #[test]
    fn query_is_encoded_as_in_the_rfc() {
        // RFC 8484, section 4.1.1.
        let query = encode_query("www.example.com", RecordType::A);
        assert_eq!(
            encode_base64url(&query),
            "AAABAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB"
        );
        assert_eq!(encode_base64url(b"a"), "YQ");
        assert_eq!(encode_base64url(b"ab"), "YWI");
    }

    #[test]
    fn values_of_every_type_are_decoded() {
        let value = |kind, data: &[u8]| {
            let message = response(type_code(kind), 0, &[data]);
            decode_answer(&message, kind).expect("a message").values.remove(0)
        };
        assert_eq!(value(RecordType::A, &[192, 0, 2, 1]), "192.0.2.1");
        let mut address = [0; 16];
        (address[0], address[1], address[15]) = (0x20, 0x01, 1);
        assert_eq!(value(RecordType::AAAA, &address), "2001::1");
        assert_eq!(value(RecordType::CNAME, b"\x03WWW\xc0\x10"), "www.example.com");
        assert_eq!(
            value(RecordType::MX, b"\x00\x0a\x04mail\xc0\x10"),
            "10 mail.example.com"
        );
        assert_eq!(value(RecordType::MX, b"\x00\x00\x00"), "0 .");
        assert_eq!(
            value(RecordType::SRV, b"\x00\x00\x00\x05\x13\xc4\x03sip\x00"),
            "0 5 5060 sip"
        );
        assert_eq!(value(RecordType::TXT, b"\x02ab\x01c"), "abc");
    }

    #[test]
    fn records_of_another_type_are_skipped() {
        let message = response(5, 3, &[b"\x03www\xc0\x10"]);
        let answer = decode_answer(&message, RecordType::A).expect("a message");
        assert_eq!(
            answer,
            QueryAnswer {
                code: 3,
                values: Vec::new()
            }
        );
    }

    #[test]
    fn malformed_messages_are_refused() {
        let query = encode_query("app.example.com", RecordType::A);
        assert_eq!(decode_answer(&query, RecordType::A), None, "a query");
        let whole = response(1, 0, &[&[192, 0, 2, 1]]);
        for length in 0..whole.len() {
            assert_eq!(
                decode_answer(&whole[..length], RecordType::A),
                None,
                "{length} bytes"
            );
        }
        // A name that points to itself.
        let looped = response(5, 0, &[b"\xc0\x2d"]);
        assert_eq!(decode_answer(&looped, RecordType::CNAME), None);
    }
}
