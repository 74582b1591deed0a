//! Requests and responses of Kafka's protocol, in the versions that are used here.

use std::collections::HashMap;

use super::crc;

/// The name under which brokers know this program.
const CLIENT: &str = "sluice";

const PRODUCE: (i16, i16) = (0, 3);
const METADATA: (i16, i16) = (3, 1);
const SASL_HANDSHAKE: (i16, i16) = (17, 1);
const SASL_AUTHENTICATE: (i16, i16) = (36, 0);

/// Brokers and partitions that are read from a response at most.
const MOST: usize = 10_000;

/// An encoded request with its length.
pub(super) struct Request {
    pub correlation: i32,
    pub bytes: Vec<u8>,
}

/// The partitions of a topic.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Metadata {
    pub brokers: HashMap<i32, (String, u16)>,
    /// The topic's error; 0 for none.
    pub error: i16,
    /// Numbers and leaders, in order of the numbers.
    pub partitions: Vec<(i32, i32)>,
}

impl Request {
    fn new((api, version): (i16, i16), correlation: i32) -> Request {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&api.to_be_bytes());
        bytes.extend_from_slice(&version.to_be_bytes());
        bytes.extend_from_slice(&correlation.to_be_bytes());
        let mut request = Request { correlation, bytes };
        request.text(CLIENT);
        request
    }

    pub(super) fn metadata(correlation: i32, topic: &str) -> Request {
        let mut request = Request::new(METADATA, correlation);
        request.number(1);
        request.text(topic);
        request.end()
    }

    pub(super) fn produce(
        correlation: i32,
        acks: i16,
        timeout: i32,
        topic: &str,
        partition: i32,
        records: &[u8],
    ) -> Request {
        let mut request = Request::new(PRODUCE, correlation);
        // No transaction.
        request.bytes.extend_from_slice(&(-1_i16).to_be_bytes());
        request.bytes.extend_from_slice(&acks.to_be_bytes());
        request.number(timeout);
        request.number(1);
        request.text(topic);
        request.number(1);
        request.number(partition);
        request.data(records);
        request.end()
    }

    pub(super) fn handshake(correlation: i32, mechanism: &str) -> Request {
        let mut request = Request::new(SASL_HANDSHAKE, correlation);
        request.text(mechanism);
        request.end()
    }

    pub(super) fn authenticate(correlation: i32, text: &[u8]) -> Request {
        let mut request = Request::new(SASL_AUTHENTICATE, correlation);
        request.data(text);
        request.end()
    }

    fn number(&mut self, number: i32) {
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }

    /// A text of at most 32,767 bytes, which topics (249), accounts and mechanisms do not exceed.
    fn text(&mut self, text: &str) {
        let length = text.len().min(i16::MAX as usize);
        self.bytes.extend_from_slice(&(length as i16).to_be_bytes());
        self.bytes.extend_from_slice(&text.as_bytes()[..length]);
    }

    fn data(&mut self, data: &[u8]) {
        self.number(i32::try_from(data.len()).unwrap_or(i32::MAX));
        self.bytes.extend_from_slice(data);
    }

    fn end(mut self) -> Request {
        let length = (self.bytes.len() - 4) as i32;
        self.bytes[..4].copy_from_slice(&length.to_be_bytes());
        self
    }
}

/// A batch of one record, uncompressed, without a producer's number (version 2 of the message format).
pub(super) fn record_batch(key: Option<&[u8]>, value: &[u8], unix_ms: i64) -> Vec<u8> {
    let mut record = vec![0];
    // Of the time and of the offset.
    varint(0, &mut record);
    varint(0, &mut record);
    match key {
        Some(key) => {
            varint(key.len() as i64, &mut record);
            record.extend_from_slice(key);
        }
        None => varint(-1, &mut record),
    }
    varint(value.len() as i64, &mut record);
    record.extend_from_slice(value);
    // Headers.
    varint(0, &mut record);

    // The part that the checksum covers.
    let mut covered = Vec::with_capacity(record.len() + 64);
    covered.extend_from_slice(&0_i16.to_be_bytes());
    covered.extend_from_slice(&0_i32.to_be_bytes());
    covered.extend_from_slice(&unix_ms.to_be_bytes());
    covered.extend_from_slice(&unix_ms.to_be_bytes());
    covered.extend_from_slice(&(-1_i64).to_be_bytes());
    covered.extend_from_slice(&(-1_i16).to_be_bytes());
    covered.extend_from_slice(&(-1_i32).to_be_bytes());
    covered.extend_from_slice(&1_i32.to_be_bytes());
    varint(record.len() as i64, &mut covered);
    covered.extend_from_slice(&record);

    let mut batch = Vec::with_capacity(covered.len() + 21);
    batch.extend_from_slice(&0_i64.to_be_bytes());
    // Of the epoch, the format's version, the checksum and all that it covers.
    batch.extend_from_slice(&((covered.len() + 9) as i32).to_be_bytes());
    batch.extend_from_slice(&(-1_i32).to_be_bytes());
    batch.push(2);
    batch.extend_from_slice(&crc::castagnoli(&covered).to_be_bytes());
    batch.extend_from_slice(&covered);
    batch
}

/// A number of variable length, zigzag-encoded.
fn varint(number: i64, out: &mut Vec<u8>) {
    let mut bits = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while bits > 0x7f {
        out.push(bits as u8 | 0x80);
        bits >>= 7;
    }
    out.push(bits as u8);
}

/// Reads a response; `None` where it ends too early.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn i16(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn i32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// A text; absent ones are empty.
    fn text(&mut self) -> Option<&'a [u8]> {
        match self.i16()? {
            -1 => Some(b""),
            length => self.take(usize::try_from(length).ok()?),
        }
    }

    /// The number of items of a list.
    fn count(&mut self) -> Option<usize> {
        match self.i32()? {
            -1 => Some(0),
            count => usize::try_from(count).ok().filter(|&count| count <= MOST),
        }
    }
}

/// The brokers, and the partitions of this topic.
pub(super) fn metadata(response: &[u8], topic: &str) -> Option<Metadata> {
    let mut from = Reader(response);
    let mut metadata = Metadata::default();
    for _ in 0..from.count()? {
        let (id, host, port) = (from.i32()?, from.text()?, from.i32()?);
        from.text()?;
        // It is logged, and must not begin a line there.
        let host =
            std::str::from_utf8(host).ok().filter(|host| host.bytes().all(|byte| byte.is_ascii_graphic()))?;
        metadata.brokers.insert(id, (host.to_owned(), u16::try_from(port).ok()?));
    }
    let _controller = from.i32()?;
    for _ in 0..from.count()? {
        let (error, name) = (from.i16()?, from.text()?);
        from.take(1)?;
        let is_ours = name == topic.as_bytes();
        if is_ours {
            metadata.error = error;
        }
        for _ in 0..from.count()? {
            let (_, partition, leader) = (from.i16()?, from.i32()?, from.i32()?);
            for _list in 0..2 {
                let replicas = from.count()?;
                from.take(replicas * 4)?;
            }
            if is_ours {
                metadata.partitions.push((partition, leader));
            }
        }
    }
    metadata.partitions.sort_unstable();
    Some(metadata)
}

/// The error code of a produced partition; 0 for none.
pub(super) fn produced(response: &[u8], topic: &str, partition: i32) -> Option<i16> {
    let mut from = Reader(response);
    for _ in 0..from.count()? {
        let name = from.text()?;
        for _ in 0..from.count()? {
            let (number, code) = (from.i32()?, from.i16()?);
            // The offset and the time.
            from.take(16)?;
            if name == topic.as_bytes() && number == partition {
                return Some(code);
            }
        }
    }
    None
}

/// The error code at the beginning of a response.
pub(super) fn code(response: &[u8]) -> Option<i16> {
    Reader(response).i16()
}

/// The error code and the bytes of an authentication.
pub(super) fn authenticated(response: &[u8]) -> Option<(i16, Vec<u8>)> {
    let mut from = Reader(response);
    let code = from.i16()?;
    from.text()?;
    let length = from.i32()?;
    Some((code, from.take(usize::try_from(length).unwrap_or(0))?.to_vec()))
}

/// Kafka's name of an error.
pub(super) fn error_name(code: i16) -> &'static str {
    match code {
        2 => "CORRUPT_MESSAGE",
        3 => "UNKNOWN_TOPIC_OR_PARTITION",
        5 => "LEADER_NOT_AVAILABLE",
        6 => "NOT_LEADER_OR_FOLLOWER",
        7 => "REQUEST_TIMED_OUT",
        10 => "MESSAGE_TOO_LARGE",
        17 => "INVALID_TOPIC_EXCEPTION",
        18 => "RECORD_LIST_TOO_LARGE",
        19 => "NOT_ENOUGH_REPLICAS",
        20 => "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        29 => "TOPIC_AUTHORIZATION_FAILED",
        35 => "UNSUPPORTED_VERSION",
        _ => "see Kafka's protocol guide",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(items: &[&[u8]]) -> Vec<u8> {
        [&(items.len() as i32).to_be_bytes()[..], &items.concat()].concat()
    }

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat()
    }

    fn broker(id: i32, host: &str, port: i32) -> Vec<u8> {
        [&id.to_be_bytes()[..], &text(host), &port.to_be_bytes(), &(-1_i16).to_be_bytes()].concat()
    }

    fn partition(number: i32, leader: i32) -> Vec<u8> {
        let replicas = listed(&[&leader.to_be_bytes()]);
        [&0_i16.to_be_bytes()[..], &number.to_be_bytes(), &leader.to_be_bytes(), &replicas, &replicas]
            .concat()
    }

    #[test]
    fn metadata_is_read() {
        let topic = |name: &str, error: i16, partitions: &[&[u8]]| {
            [&error.to_be_bytes()[..], &text(name), &[0], &listed(partitions)].concat()
        };
        let brokers = listed(&[&broker(1, "a", 9092), &broker(2, "b", 9093)]);
        let topics =
            listed(&[&topic("other", 3, &[]), &topic("t", 0, &[&partition(1, 2), &partition(0, 1)])]);
        let response = [&brokers[..], &1_i32.to_be_bytes(), &topics].concat();
        let found = metadata(&response, "t").unwrap();
        assert_eq!((found.error, &found.partitions[..]), (0, &[(0, 1), (1, 2)][..]));
        assert_eq!(found.brokers[&2], ("b".to_owned(), 9093));
        assert_eq!(metadata(&response, "other").unwrap().error, 3);
        // None of its beginnings is whole, and no length is trusted.
        for end in 0..response.len() {
            assert_eq!(metadata(&response[..end], "t"), None, "{end}");
        }
        let forged = [&listed(&[&broker(1, "a\nerror", 9092)])[..], &1_i32.to_be_bytes(), &topics].concat();
        assert_eq!(metadata(&forged, "t"), None);
        assert_eq!(metadata(&i32::MAX.to_be_bytes(), "t"), None);
        assert_eq!(metadata(&[0x80, 0, 0, 0], "t"), None);
    }

    #[test]
    fn errors_of_a_partition_are_read() {
        let partition =
            |number: i32, code: i16| [&number.to_be_bytes()[..], &code.to_be_bytes(), &[0; 16]].concat();
        let topic = [text("t"), listed(&[&partition(0, 0), &partition(1, 6)])].concat();
        let response = [listed(&[&topic]), vec![0; 4]].concat();
        assert_eq!((produced(&response, "t", 0), produced(&response, "t", 1)), (Some(0), Some(6)));
        assert_eq!((produced(&response, "u", 0), produced(&response[..20], "t", 1)), (None, None));
    }

    #[test]
    fn requests_are_those_of_the_protocol() {
        let request = Request::metadata(7, "t").bytes;
        let expected =
            [&[0, 0, 0, 23, 0, 3, 0, 1, 0, 0, 0, 7, 0, 6][..], b"sluice", &[0, 0, 0, 1, 0, 1], b"t"];
        assert_eq!(request, expected.concat());
        let batch = record_batch(Some(b"k"), b"value", 1);
        assert_eq!(batch.len(), 12 + i32::from_be_bytes(batch[8..12].try_into().unwrap()) as usize);
        assert_eq!(batch[17..21], crc::castagnoli(&batch[21..]).to_be_bytes());
        // Length 12, attributes, time, offset, the key, the value, no headers; lengths are doubled.
        assert_eq!(batch[61..], [&[24, 0, 0, 0, 2][..], b"k", &[10], b"value", &[0]].concat());
        assert_eq!(record_batch(None, b"", 1)[61..], [12, 0, 0, 0, 1, 0, 0]);
    }
}
