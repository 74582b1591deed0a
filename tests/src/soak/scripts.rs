//! R7: a plugin in Lua is loaded again a thousand times, under load.

use super::load::{Load, RATE};
use super::site::{Site, settled};
use super::{Row, Trial};
use crate::client::Call;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

const RELOADS: u32 = 1000;
/// Memory is compared from here on: the machines have grown to their size.
const WARM: u32 = 200;
/// A version is a hundred KiB in each machine, so that versions which stay show: that would be 300 MiB.
const ALLOWED_KIB: u64 = 64 << 10;
/// A version that is not used by then never will be.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let folder = tempfile::Builder::new().prefix("sluice-scripts-").tempdir()?;
    std::fs::create_dir_all(folder.path().join("apisix/plugins"))?;
    write(folder.path(), 0)?;
    let pattern = format!("{}/?.lua", folder.path().display());
    let config = json!({"apisix": {"extra_lua_path": pattern}, "plugins": ["reloaded"]});
    let mut site = Site::start(trial.program, config, "")?;
    site.put("routes/load", &site.route("/load/*", json!({"plugins": {"reloaded": {}}})))?;
    let load = Load::start(&site.proxy, &["/load".to_owned()], RATE);
    let mut writer = site.writer();
    let mut warm = 0;
    for turn in 1..=RELOADS {
        trial.progress(f64::from(turn) / f64::from(RELOADS), "versions");
        write(folder.path(), turn)?;
        writer.send(Call::new("PUT", "/apisix/admin/plugins/reload"), &json!({}))?;
        let wanted = turn.to_string();
        let until = Instant::now() + PATIENCE;
        while site.get("/load/own", "own")?.message.first("x-version") != Some(wanted.as_str()) {
            ensure!(Instant::now() < until, "version {turn} is not used");
            std::thread::sleep(Duration::from_millis(1));
        }
        if turn == WARM {
            warm = site.rss_kib()?;
        }
    }
    let slices = load.stop();
    let late = settled(warm + ALLOWED_KIB, || site.rss_kib())?;
    let grown = late.saturating_sub(warm) / 1024;
    Ok(vec![
        Row::new(
            "R7",
            &format!("failed requests while a plugin in Lua is loaded {RELOADS} times"),
            "0",
            slices.verdict(),
            slices.failed == 0 && slices.requests > u64::from(RELOADS),
        ),
        Row::new(
            "R7",
            "memory that its last 800 versions leave",
            &format!("< {} MiB", ALLOWED_KIB >> 10),
            format!("{grown} MiB"),
            late < warm + ALLOWED_KIB,
        ),
    ])
}

/// Writes a version of the plugin.
fn write(folder: &Path, version: u32) -> Result<()> {
    let text = format!(
        "local much = ('{version}-'):rep(100000 / #'{version}-')
        return {{version = 0.1, priority = 1, name = 'reloaded', schema = {{type = 'object'}},
            header_filter = function() ngx.header['X-Version'] = '{version}' ngx.header['X-Length'] = #much end}}"
    );
    std::fs::write(folder.join("apisix/plugins/reloaded.lua"), text).context("cannot write the plugin")
}
