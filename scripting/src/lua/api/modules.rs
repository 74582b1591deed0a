//! Libraries by name.

use mlua::{Result, Table, Value};

use super::super::libs;
use super::super::native::Natives;

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    natives.add("own_library", |lua, (name, globals): (String, Table)| libs::own(lua, &name, globals))?;
    natives.add("near_module", |lua, name: String| {
        let package: Table = lua.named_registry_value(libs::PACKAGE)?;
        let mut names: Vec<String> = Vec::new();
        for list in ["loaded", "preload"] {
            let list: Table = package.get(list)?;
            for pair in list.pairs::<Value, Value>() {
                if let (Value::String(name), _) = pair? {
                    names.push(name.to_string_lossy());
                }
            }
        }
        names.extend(["apisix.core", "cjson", "cjson.safe"].map(str::to_owned));
        Ok(model::invalid::nearest(&name, names.iter().map(String::as_str)).map(str::to_owned))
    })
}
