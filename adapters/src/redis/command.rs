//! Commands as bytes, and answers as numbers.

use redis::Value;

use super::script::Script;

/// A command; its first argument is its name.
pub fn command(arguments: &[&[u8]]) -> Vec<u8> {
    let mut command = redis::Cmd::with_capacity(arguments.len(), arguments.iter().map(|it| it.len()).sum());
    for argument in arguments {
        command.arg(*argument);
    }
    command.get_packed_command()
}

/// A call of a script; its keys are in one slot.
#[derive(Debug)]
pub struct Call<'s> {
    pub script: &'s Script,
    pub keys: Vec<Vec<u8>>,
    pub arguments: Vec<String>,
}

impl Call<'_> {
    /// By its name, or with its text for a server that does not know it yet.
    pub fn command(&self, with_text: bool) -> Vec<u8> {
        let (name, script) = match with_text {
            true => ("EVAL", &self.script.text),
            false => ("EVALSHA", &self.script.sha),
        };
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command.get_packed_command()
    }
}

/// An integer, which may be written as text.
pub fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => text(value)?.parse().ok(),
    }
}

/// A number, which is written as text.
pub fn number(value: &Value) -> Option<f64> {
    text(value)?.parse().ok().filter(|number: &f64| number.is_finite())
}

pub fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

pub fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(list) => Some(list),
        _ => None,
    }
}

/// The slot of a key in a cluster: CRC16 (XMODEM) of the part in braces, if there is one, else of all.
pub fn slot(key: &[u8]) -> u16 {
    let braces = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let close = key[open + 1..].iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &key[open + 1..open + 1 + close])
    });
    let crc = braces.unwrap_or(key).iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        for (key, expected) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}bar", 12_182),
            ("a{foo}{bar}", 12_182),
            ("foo{}{bar}", 8_363),
            ("", 0),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }
}
