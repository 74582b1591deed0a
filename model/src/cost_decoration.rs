//! A GraphQL cost decoration: what a field of a service's GraphQL schema costs.

use serde::Deserialize;

use crate::field::Meta;

/// A decoration of APISIX 3.18; what reads it is the plugin graphql-limit-count. The cost of a field is that of all
/// below it, times `mul_value` and the arguments named, plus `add_value` and the arguments named.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct CostDecoration {
    #[serde(flatten)]
    pub meta: Meta,
    /// A type, `Type.field`, or a chain of selections: `Query.products.nodes`.
    pub field_path: String,
    pub add_value: f64,
    #[serde(default)]
    pub add_arguments: Vec<String>,
    pub mul_value: f64,
    #[serde(default)]
    pub mul_arguments: Vec<String>,
}
