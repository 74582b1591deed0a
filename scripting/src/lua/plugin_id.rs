//! The identity of a plugin in a file.

use sdk::catalog::Subsystem;

/// A plugin of a library: names of the subsystems are apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PluginId {
    pub subsystem: Subsystem,
    pub name: &'static str,
}
