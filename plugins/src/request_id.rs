//! hot path
//!
//! request-id: gives each request an identifier, and sends it to the client.
//!
//! Settings and algorithms as in APISIX 3.18. An identifier the client sent is
//! kept. Made ones come from the exchange's own 128 random bits, so nothing has
//! to be remembered between the phases.

use model::Invalid;
use sdk::chain::Phases;
use sdk::trace::hex_digits;
use sdk::{BadField, Build, Exchange, HeaderName, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

/// The stage.
pub struct RequestId {
    header: HeaderName,
    include_in_response: bool,
    algorithm: Algorithm,
    /// Laid over the exchange's bits, so that stages with headers of their own make identifiers
    /// of their own.
    salt: [u64; 2],
}

#[derive(Debug, Deserialize)]
pub struct Config {
    header_name: String,
    include_in_response: bool,
    algorithm: String,
    range_id: RangeId,
}

#[derive(Debug, Deserialize)]
struct RangeId {
    length: usize,
    char_set: String,
}

enum Algorithm {
    Uuid,
    UuidV7,
    Nanoid,
    Ksuid,
    Range { length: usize, char_set: Vec<u8> },
}

type Id = SmallVec<[u8; 64]>;

/// A longer identifier has no use and would blow up each request.
const MAX_RANGE: usize = 1024;

/// The one typed into APISIX's source, with `G` twice and without `J`.
const RANGE_SET: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIGKLMNOPQRSTUVWXYZ0123456789";

impl Plugin for RequestId {
    const NAME: &'static str = "request-id";
    const PRIORITY: i32 = 12015;
    const PHASES: Phases = Phases::REWRITE.with(Phases::HEADER_FILTER);

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "header_name": {"type": "string", "default": "X-Request-Id"},
                "include_in_response": {"type": "boolean", "default": true},
                "algorithm": {
                    "type": "string",
                    "enum": ["uuid", "nanoid", "range_id", "ksuid", "uuidv7"],
                    "default": "uuid",
                },
                "range_id": {
                    "type": "object",
                    "properties": {
                        "length": {"type": "integer", "minimum": 6, "default": 16},
                        "char_set": {"type": "string", "minLength": 6, "default": RANGE_SET},
                    },
                    "default": {"length": 16, "char_set": RANGE_SET},
                },
            },
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<RequestId, Invalid> {
        let invalid =
            |bad: BadField| Invalid::new(bad.to_string()).at("/header_name").got(config.header_name.as_str());
        let header = HeaderName::new(&config.header_name).map_err(invalid)?;
        let algorithm = match config.algorithm.as_str() {
            "uuidv7" => Algorithm::UuidV7,
            "nanoid" => Algorithm::Nanoid,
            "ksuid" => Algorithm::Ksuid,
            "range_id" => Algorithm::range(config.range_id)?,
            _ => Algorithm::Uuid,
        };
        let salt = salt(header.as_str());
        Ok(RequestId { header, include_in_response: config.include_in_response, algorithm, salt })
    }

    fn phases(&self) -> Phases {
        if self.include_in_response { Self::PHASES } else { Phases::REWRITE }
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        if x.header(&self.header).is_none_or(<[u8]>::is_empty) {
            let id = self.make(x);
            // Name and characters were checked when the stage was built.
            let _ = x.set_header(&self.header, &id);
        }
        Step::Next
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        if x.response_header(&self.header).is_some_and(|id| !id.is_empty()) {
            return;
        }
        // Another stage may have taken the request's header away; then it is made once more.
        let id = match x.header(&self.header) {
            Some(id) if !id.is_empty() => Id::from_slice(id),
            _ => self.make(x),
        };
        let _ = x.set_response_header(&self.header, &id);
    }
}

impl RequestId {
    /// The exchange's identifier: the same at every call for one exchange.
    fn make(&self, x: &Exchange<'_>) -> Id {
        let [high, low] = x.unique();
        self.algorithm.make(x, [high ^ self.salt[0], low ^ self.salt[1]])
    }
}

/// Bits that are another header's alone; none for the default one.
fn salt(header: &str) -> [u64; 2] {
    let header = header.to_ascii_lowercase();
    if header == "x-request-id" {
        return [0; 2];
    }
    let digest = Sha256::digest(header);
    [0, 8].map(|at| digest[at..at + 8].iter().fold(0, |word, &byte| word << 8 | u64::from(byte)))
}

impl Algorithm {
    fn range(RangeId { length, char_set }: RangeId) -> Result<Algorithm, Invalid> {
        if length > MAX_RANGE {
            return Err(Invalid::new(format!("range_id.length must be at most {MAX_RANGE}"))
                .at("/range_id/length")
                .got(length.to_string()));
        }
        if !char_set.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Invalid::new("range_id.char_set must hold visible ASCII characters only")
                .at("/range_id/char_set")
                .hint("the identifier is sent as a header's value"));
        }
        Ok(Algorithm::Range { length, char_set: char_set.into_bytes() })
    }

    fn make(&self, x: &Exchange<'_>, random: [u64; 2]) -> Id {
        let bits = u128::from(random[0]) << 64 | u128::from(random[1]);
        match self {
            Algorithm::Uuid => uuid(bits, 4),
            Algorithm::UuidV7 => uuid(u128::from(x.start_ms()) << 80 | bits & ((1 << 80) - 1), 7),
            Algorithm::Nanoid => nanoid(bits),
            Algorithm::Ksuid => ksuid(x.start_ms() / 1000, bits),
            Algorithm::Range { length, char_set } => range(random, *length, char_set),
        }
    }
}

/// RFC 9562: version and variant laid over the bits.
fn uuid(bits: u128, version: u128) -> Id {
    let bits = bits & !(0xf << 76) | version << 76;
    let bits = bits & !(0b11 << 62) | 0b10 << 62;
    let words = [96, 64, 32, 0].map(|shift| hex_digits((bits >> shift) as u32));
    let digits: &[u8] = words.as_flattened();
    let mut id = [b'-'; 36];
    for (place, part) in [(0, 0..8), (9, 8..12), (14, 12..16), (19, 16..20), (24, 20..32)] {
        id[place..place + part.len()].copy_from_slice(&digits[part]);
    }
    Id::from_slice(&id)
}

/// 21 characters of 6 bits: 126 bits.
fn nanoid(bits: u128) -> Id {
    const ALPHABET: &[u8; 64] = b"-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    (0..21).map(|place| ALPHABET[(bits >> (6 * place) & 63) as usize]).collect()
}

/// Seconds since the KSUID epoch, then 128 random bits, in base 62: 27 characters.
fn ksuid(seconds: u64, bits: u128) -> Id {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let time = seconds.saturating_sub(1_400_000_000) as u32;
    let mut words = [time, (bits >> 96) as u32, (bits >> 64) as u32, (bits >> 32) as u32, bits as u32];
    let mut id = Id::from_elem(b'0', 27);
    for place in id.iter_mut().rev() {
        let mut rest = 0u64;
        for word in &mut words {
            let value = rest << 32 | u64::from(*word);
            *word = (value / 62) as u32;
            rest = value % 62;
        }
        *place = ALPHABET[rest as usize];
    }
    id
}

/// Characters of the set, from two generators so that all 128 bits tell identifiers apart.
fn range(random: [u64; 2], length: usize, char_set: &[u8]) -> Id {
    let mut sources = random.map(fastrand::Rng::with_seed);
    (0..length).map(|place| char_set[sources[place % 2].usize(..char_set.len())]).collect()
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    /// The identifier that the upstream gets, and the one in the response.
    fn ids(config: Value, headers: &[(&str, &str)], upstream: &[(&str, &str)]) -> (String, Option<String>) {
        let mut probe = Probe::request("GET", "/", headers);
        let stage: RequestId = probe.stage(config).unwrap();
        probe.world.now_ms.set(1_700_000_000_123);
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let sent = text(x.header(&stage.header).unwrap());
        respond(&mut x, 200, upstream);
        if stage.phases().has(sdk::Phase::HeaderFilter) {
            stage.header_filter(&mut x);
        }
        let returned = x.response_header(&stage.header).map(text);
        (sent, returned)
    }

    #[test]
    fn a_request_without_an_identifier_gets_one_and_the_client_learns_it() {
        let (sent, returned) = ids(json!({}), &[], &[]);
        assert_eq!(Some(&sent), returned.as_ref());
        let (other, _) = ids(json!({}), &[], &[]);
        assert_ne!(sent, other);
        let (sent, returned) =
            ids(json!({"include_in_response": false, "header_name": "X-Id"}), &[("X-Id", "")], &[]);
        assert_eq!((sent.len(), returned), (36, None));
    }

    #[test]
    fn stages_with_headers_of_their_own_make_identifiers_of_their_own() {
        for algorithm in ["uuid", "nanoid", "ksuid", "range_id"] {
            let mut probe = Probe::request("GET", "/", &[]);
            let stage = |name: &str| -> RequestId {
                probe.stage(json!({ "header_name": name, "algorithm": algorithm })).unwrap()
            };
            let stages = ["X-Request-Id", "X-Own-Id", "X-Trace"].map(stage);
            let mut x = probe.exchange();
            stages.iter().for_each(|stage| assert!(matches!(stage.rewrite(&mut x), Step::Next)));
            let ids = stages.each_ref().map(|stage| x.header(&stage.header).unwrap().to_vec());
            assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{algorithm}: {ids:?}");
        }
    }

    #[test]
    fn identifiers_that_are_there_stay() {
        let own = [("x-request-id", "mine")];
        assert_eq!(ids(json!({}), &own, &[]), ("mine".into(), Some("mine".into())));
        let upstream = [("X-Request-Id", "theirs")];
        assert_eq!(ids(json!({}), &own, &upstream), ("mine".into(), Some("theirs".into())));
    }

    #[test]
    fn each_algorithm_has_its_shape() {
        let made = |algorithm: &str| ids(json!({ "algorithm": algorithm }), &[], &[]).0;
        let uuid = made("uuid");
        let dashes: Vec<_> = uuid.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!((uuid.len(), dashes), (36, vec![8, 13, 18, 23]));
        assert!(uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
        let v7 = made("uuidv7");
        assert!(v7.starts_with("018bcfe5-687b-7") && b"89ab".contains(&v7.as_bytes()[19]), "{v7}");
        let nanoid = made("nanoid");
        assert!(
            nanoid.len() == 21 && nanoid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        );
        let ksuid = made("ksuid");
        assert!(ksuid.len() == 27 && ksuid.bytes().all(|b| b.is_ascii_alphanumeric()), "{ksuid}");
        assert_eq!(made("range_id").len(), 16);
        let range = json!({"algorithm": "range_id", "range_id": {"length": 40, "char_set": "abcdef"}});
        let (range, _) = ids(range, &[], &[]);
        assert!(range.len() == 40 && range.bytes().all(|b| b"abcdef".contains(&b)), "{range}");
    }

    #[test]
    fn every_random_bit_distinguishes_identifiers() {
        let mut probe = Probe::get("/");
        probe.world.now_ms.set(1_700_000_000_123);
        let x = probe.exchange();
        for (algorithm, bits) in [
            (Algorithm::Uuid, 122),
            (Algorithm::UuidV7, 74),
            (Algorithm::Nanoid, 126),
            (Algorithm::Ksuid, 128),
        ] {
            for random in [[0, 0], [u64::MAX, u64::MAX], [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]] {
                let one = algorithm.make(&x, random);
                let others = (0..128).map(|bit| match bit {
                    0..64 => [random[0] ^ 1 << bit, random[1]],
                    _ => [random[0], random[1] ^ 1 << (bit - 64)],
                });
                let mut different: Vec<Id> =
                    others.map(|other| algorithm.make(&x, other)).filter(|other| *other != one).collect();
                different.sort();
                different.dedup();
                assert_eq!(different.len(), bits, "{one:?}");
            }
        }
        // The time goes first.
        let ksuid_of = |random| Algorithm::Ksuid.make(&x, random);
        assert_eq!(ksuid_of([7, 7]), ksuid(1_700_000_000, 7 << 64 | 7));
    }

    /// A stage with a header of its own mixes its name into the bits, and keeps all of them.
    #[test]
    fn identifiers_of_other_headers_are_as_random() {
        let probe = Probe::get("/");
        let stage: RequestId = probe.stage(json!({"header_name": "X-Own-Id"})).unwrap();
        let mut seen = [0u16; 36];
        for _ in 0..300 {
            let mut probe = Probe::get("/");
            for (digits, byte) in seen.iter_mut().zip(stage.make(&probe.exchange())) {
                *digits |= 1 << char::from(byte).to_digit(16).unwrap_or(0);
            }
        }
        let of = |digits: &u16| digits.count_ones();
        let free = (0..36).filter(|at| ![8, 13, 14, 18, 19, 23].contains(at));
        assert!(free.map(|at| of(&seen[at])).all(|digits| digits > 12), "{seen:04x?}");
        let words = ["X-A", "X-B", "Trace"].map(salt);
        assert!(words.iter().flatten().all(|word| *word > u64::from(u32::MAX)), "{words:x?}");
        assert_eq!(salt("x-REQUEST-id"), [0, 0]);
    }

    #[test]
    fn an_empty_identifier_is_none() {
        let mut probe = Probe::request("GET", "/", &[("X-Request-Id", "")]);
        let stage: RequestId = probe.stage(json!({})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[("X-Request-Id", "")]);
        stage.header_filter(&mut x);
        assert_eq!(x.response_header("X-Request-Id").map(<[u8]>::len), Some(36));
    }

    #[test]
    fn ksuids_are_those_of_the_specification() {
        // From the KSUID reference: its greatest value, and an example.
        let most = ksuid(1_400_000_000 + u64::from(u32::MAX), u128::MAX);
        assert_eq!(&most[..], b"aWgEPTl1tmebfsQzFP4bxwgy80V");
        let example = ksuid(1_400_000_000 + 107_608_047, 0xB5A1_CD34_B5F9_9D11_54FB_6853_345C_9735);
        assert_eq!(&example[..], b"0ujtsYcgvSTl8PAuAdqWYSMnLOv");
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        for (config, pointer) in [
            (json!({"algorithm": "snowflake"}), "/algorithm"),
            (json!({"header_name": "a b"}), "/header_name"),
            (json!({"range_id": {"length": 5}}), "/range_id/length"),
            (json!({"range_id": {"char_set": "abc"}}), "/range_id/char_set"),
            (json!({"algorithm": "range_id", "range_id": {"length": 5000}}), "/range_id/length"),
            (json!({"algorithm": "range_id", "range_id": {"char_set": "abcde\n"}}), "/range_id/char_set"),
        ] {
            assert_eq!(probe.stage::<RequestId>(config.clone()).err().unwrap().pointer, pointer, "{config}");
        }
    }
}
