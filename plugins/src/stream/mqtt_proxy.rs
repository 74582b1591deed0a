//! hot path
//!
//! mqtt-proxy: reads the first message of an MQTT client, so that an upstream can be chosen by the
//! client's id (`hash_on: vars`, `key: mqtt_client_id`).
//!
//! Settings as in APISIX 3.18. A stream that does not begin with a CONNECT of the configured protocol is
//! cut off, as is one whose CONNECT is longer than 16 KiB. Not a byte of it is changed.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

/// The plugin instance.
pub struct MqttProxy {
    name: Box<[u8]>,
    level: i64,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    protocol_name: String,
    protocol_level: i64,
}

/// The outcome of reading a CONNECT.
#[derive(Debug, PartialEq, Eq)]
enum Read<'a> {
    /// The number of bytes needed.
    More(usize),
    Connect(Connect<'a>),
}

#[derive(Debug, PartialEq, Eq)]
struct Connect<'a> {
    protocol: &'a [u8],
    level: u8,
    client_id: &'a [u8],
}

/// It is no CONNECT.
#[derive(Debug, PartialEq, Eq)]
struct Malformed;

/// The longest CONNECT that is looked at.
const MOST: usize = 16 << 10;

impl Plugin for MqttProxy {
    const NAME: &'static str = "mqtt-proxy";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::PREREAD;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "protocol_name": {"type": "string", "default": "MQTT"},
                "protocol_level": {"type": "integer"},
            },
            "required": ["protocol_level"],
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<MqttProxy, Invalid> {
        Ok(MqttProxy { name: config.protocol_name.into_bytes().into(), level: config.protocol_level })
    }

    fn preread(&self, x: &mut Exchange<'_>) -> Step {
        let refused = || Step::Reply(Reply::status(503));
        let (bytes, asked) = (x.body(), x.body_asked());
        let client_id = match connect(bytes) {
            Ok(Read::More(wanted)) if wanted > MOST || asked >= wanted => return refused(),
            Ok(Read::More(wanted)) => return Step::Body(wanted),
            Ok(Read::Connect(connect)) => {
                if *connect.protocol != *self.name || i64::from(connect.level) != self.level {
                    return refused();
                }
                // Clients without an id of their own are identified by their address.
                (!connect.client_id.is_empty()).then(|| connect.client_id.into())
            }
            Err(Malformed) => return refused(),
        };
        x.set_mqtt_client_id(client_id);
        Step::Next
    }
}

/// Reads a CONNECT (MQTT 5.0 section 3.1; 3.1.1 has no properties).
fn connect(bytes: &[u8]) -> Result<Read<'_>, Malformed> {
    let Some((&kind, rest)) = bytes.split_first() else { return Ok(Read::More(5)) };
    if kind != 0x10 {
        return Err(Malformed);
    }
    let mut rest = Reader(rest);
    let Some(len) = rest.number()? else { return Ok(Read::More(bytes.len().max(4) + 1)) };
    let whole = bytes.len() - rest.0.len() + len;
    let Some(body) = rest.0.get(..len) else { return Ok(Read::More(whole)) };
    let mut body = Reader(body);
    let protocol = body.text()?;
    let level = body.take(1)?[0];
    // Flags, and the keep-alive.
    body.take(3)?;
    if level >= 5 {
        let properties = body.number()?.ok_or(Malformed)?;
        body.take(properties)?;
    }
    Ok(Read::Connect(Connect { protocol, level, client_id: body.text()? }))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.take(2)?;
        self.take(usize::from(u16::from_be_bytes([len[0], len[1]])))
    }

    /// A number of one to four bytes; `None` if it goes on behind what is there.
    fn number(&mut self) -> Result<Option<usize>, Malformed> {
        let mut number = 0;
        for at in 0..4 {
            let Some(&byte) = self.0.get(at) else { return Ok(None) };
            number |= usize::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Ok(Some(number));
            }
        }
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use sdk::testing::Probe;

    use super::*;

    const V4: &[u8] = b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03foo";
    const V5: &[u8] = b"\x10\x15\x00\x04MQTT\x05\x02\x00\x3c\x05\x11\0\0\0\x0a\x00\x03foo";

    /// Returns the result for a client that sends these bytes, and its id.
    fn run(level: i64, bytes: &[u8]) -> (Result<(), u16>, Option<Box<[u8]>>) {
        let mut probe = Probe::stream();
        let plugin: MqttProxy = probe.stage(json!({"protocol_level": level})).unwrap();
        let mut x = probe.exchange();
        let result = loop {
            match plugin.preread(&mut x) {
                Step::Next => break Ok(()),
                Step::Reply(reply) => break Err(reply.status),
                Step::Body(wanted) => {
                    x.engine_mut().body_state = sdk::exchange::Body::Whole;
                    x.engine_mut().body_asked = wanted;
                    *Rc::make_mut(&mut x.engine_mut().messages.body) =
                        bytes[..wanted.min(bytes.len())].to_vec();
                }
                step => panic!("{step:?}"),
            }
        };
        (result, x.stream().as_ref().and_then(|stream| stream.mqtt_client_id.clone()))
    }

    #[test]
    fn the_client_id_is_read() {
        let foo = || Some(b"foo"[..].into());
        assert_eq!(run(4, V4), (Ok(()), foo()));
        assert_eq!(run(5, V5), (Ok(()), foo()));
        assert_eq!(run(4, &[V4, b"more"].concat()), (Ok(()), foo()));
        assert_eq!(run(4, b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00"), (Ok(()), None));
    }

    #[test]
    fn a_long_connect_is_read_up_to_the_bound() {
        // Three bytes of length, ten before the id, and two of its own length.
        let with_id = |id: usize| {
            let len = 12 + id;
            let mut bytes = vec![0x10, len as u8 | 0x80, (len >> 7) as u8 | 0x80, (len >> 14) as u8];
            bytes.extend_from_slice(b"\x00\x04MQTT\x04\x02\x00\x3c");
            bytes.extend_from_slice(&(id as u16).to_be_bytes());
            bytes.resize(bytes.len() + id, b'i');
            bytes
        };
        for (id, taken) in [(1, true), (200, true), (5000, true), (MOST - 16, true), (MOST - 15, false)] {
            let (result, read) = run(4, &with_id(id));
            assert_eq!((result.is_ok(), read.map(|id| id.len())), (taken, taken.then_some(id)), "{id}");
        }
    }

    #[test]
    fn no_more_is_read_than_the_length_says() {
        for (bytes, wanted) in [
            (&b""[..], 5),
            (b"\x10", 5),
            (b"\x10\x80\x80", 5),
            (b"\x10\x80\x80\x80", 5),
            (b"\x10\x0f\x00", 17),
            (b"\x10\xc8\x01\x00\x04", 203),
        ] {
            assert!(matches!(connect(bytes), Ok(Read::More(more)) if more == wanted), "{bytes:?}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        assert_eq!(run(5, V4).0, Err(503), "another level");
        for bytes in [
            &b"mmm"[..],
            b"\x20\x0f\x00\x04MQTT\x04",
            b"\x10\xff\xff\xff\xff\x01",
            b"\x10\x0f\x00\x04MQXX\x04\x02\x00\x3c\x00\x03foo",
            b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x09foo",
            // Longer than is looked at.
            b"\x10\x80\x80\x02\x00\x04MQTT",
        ] {
            assert_eq!(run(4, bytes).0, Err(503), "{bytes:?}");
        }
        (0..V4.len()).for_each(|end| assert_eq!(run(4, &V4[..end]).0, Err(503), "ends after {end}"));
    }
}
