//! What the Admin API is told at the start (`deployment.admin` of config.yaml).

use std::fmt;

use ipnet::IpNet;

#[derive(Debug, Clone)]
pub struct Config {
    /// Without any, nobody gets in (unless `key_required` is off).
    pub keys: Vec<AdminKey>,
    /// `admin_key_required`: `false` lets everyone in whom `allow` lets in.
    pub key_required: bool,
    /// `allow_admin`: the networks that may connect; empty allows all.
    pub allow: Vec<IpNet>,
    /// `enable_admin_cors`.
    pub cors: bool,
    /// The `plugins` list of config.yaml, used until the store has one; `None` switches all on.
    pub plugins: Option<Vec<String>>,
}

/// One of `admin_key`.
#[derive(Clone)]
pub struct AdminKey {
    pub name: String,
    pub key: String,
    pub role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// May do everything.
    Admin,
    /// May only GET.
    Viewer,
}

impl Default for Config {
    /// As APISIX's defaults: from this machine only, with a key (of which there is none yet).
    fn default() -> Self {
        Config {
            keys: Vec::new(),
            key_required: true,
            allow: vec![IpNet::new_assert([127, 0, 0, 0].into(), 24)],
            cors: true,
            plugins: None,
        }
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdminKey({}, {:?})", self.name, self.role)
    }
}
