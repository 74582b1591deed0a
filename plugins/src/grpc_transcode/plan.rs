//! How the messages of a method are transcoded, as a whole: frames on one side, JSON on the other.

use std::sync::Arc;

use sdk::Fields;
use sdk::grpc::{self, PREFIX, Prefix};
use sdk::protos::DescriptorPool;

use super::decode::{Large, Limits, Options};
use super::read::Fault;
use super::status::Detail;
use super::types::{Method, Types};
use super::{Config, decode, encode, status};

/// How the messages of the method are transcoded.
pub(super) struct Plan {
    types: Types,
    pub method: Method,
    options: Options,
    detail: Detail,
}

/// Where a body that a client sends comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Arguments,
}

/// A message is at most 6.5 times as long as its JSON: `0,` in a list may become a tag of five bytes and a number of
/// eight. A vector that grows doubles its capacity.
pub(super) const ENCODED: usize = 8;

pub(super) const NO_METHOD: &str = "the proto of grpc-transcode has no such service or method";

/// The JSON of the complete messages in a body, and the bytes that they took.
pub(super) type Made = Result<(Vec<u8>, usize), Fault>;

impl Plan {
    pub fn new(pool: &DescriptorPool, config: &Config) -> Result<Arc<Plan>, &'static str> {
        let mut types = Types::default();
        let method = types.method(pool, &config.service, &config.method).ok_or(NO_METHOD)?;
        let detail = match &config.status_detail_type {
            None => Detail::Unset,
            Some(name) => types.message(pool, name).map_or(Detail::Unknown, Detail::Message),
        };
        Ok(Arc::new(Plan { types, method, options: options(&config.pb_option), detail }))
    }

    /// Makes the message of a request, behind its prefix. Its capacity is at most [`ENCODED`] times the text's length.
    pub fn framed(&self, form: Form, text: &[u8]) -> Result<Vec<u8>, String> {
        let mut out = Vec::with_capacity(PREFIX + text.len());
        out.resize(PREFIX, 0);
        match form {
            Form::Json => encode::from_json(&self.types, self.method.input, text, &mut out)?,
            Form::Arguments => encode::from_arguments(&self.types, self.method.input, text, &mut out)?,
        }
        let prefix = grpc::prefix(out.len() - PREFIX).ok_or("it is too long")?;
        out[..PREFIX].copy_from_slice(&prefix);
        Ok(out)
    }

    /// Makes JSON of the complete messages in a body: of all of them, each a line, or of the only one.
    pub fn json(&self, body: &[u8], streams: bool, limits: Limits) -> Made {
        let (mut out, mut read) = (Vec::new(), 0);
        if body.is_empty() && !streams {
            // As in APISIX: a message without fields.
            self.write(&[], limits, &mut out)?;
        }
        while let Some(message) = next_frame(&body[read..], limits.message)? {
            self.write(message, limits, &mut out)?;
            read += PREFIX + message.len();
            if !streams {
                break;
            }
            out.push(b'\n');
        }
        Ok((out, read))
    }

    /// Writes the JSON of one message behind `out`.
    pub fn write(&self, message: &[u8], limits: Limits, out: &mut Vec<u8>) -> Result<(), Fault> {
        decode::to_json(&self.types, self.method.output, message, self.options, limits, out)
    }

    /// The outcome of a call as JSON.
    pub fn outcome(&self, fields: &Fields) -> Vec<u8> {
        let field = |name: &[u8]| fields.get_named(name);
        let (status, message) = (field(b"grpc-status"), field(b"grpc-message"));
        let details = field(b"grpc-status-details-bin");
        let (status, message) = (status.unwrap_or_default(), message.unwrap_or_default());
        status::body(&self.types, &self.detail, status, message, details)
    }
}

/// The message of the first frame; `None` if it is not complete.
pub(super) fn next_frame(body: &[u8], longest: usize) -> Result<Option<&[u8]>, Fault> {
    let Some((Prefix { is_compressed, length }, rest)) = Prefix::read(body) else { return Ok(None) };
    if is_compressed {
        return Err(Fault::Malformed);
    }
    if length > longest {
        return Err(Fault::TooLong);
    }
    Ok(rest.get(..length))
}

/// Of options that contradict each other, the last counts. Hooks are functions in Lua; there are none here.
fn options(names: &[String]) -> Options {
    let mut options = Options { enum_names: true, large: Large::Number, defaults: Some(0) };
    for name in names {
        match name.as_str() {
            "enum_as_name" => options.enum_names = true,
            "enum_as_value" => options.enum_names = false,
            "int64_as_number" => options.large = Large::Number,
            "int64_as_string" => options.large = Large::Text,
            "int64_as_hexstring" => options.large = Large::Hexadecimal,
            "auto_default_values" => options.defaults = Some(0),
            "use_default_values" => options.defaults = Some(1),
            "use_default_metatable" => options.defaults = Some(2),
            "no_default_values" => options.defaults = None,
            _ => {}
        }
    }
    options
}
