//! A proto: a protobuf definition for transcoding.

use serde::Deserialize;

use crate::field::Meta;

/// A protobuf source, or a base64 descriptor set. It is not compiled here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Proto {
    #[serde(flatten)]
    pub meta: Meta,
    pub content: String,
}
