//! `cargo x run` and `cargo x sluice`: build the gateway and become it. Other commands: the same with `tasks`.

use anyhow::{Error, Result, bail};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use xtask::shell::{cargo, root, show};

/// The sample that is started without a configuration, below the root.
const SAMPLE: &str = "conf";
/// Ports of the control API and of metrics where config.yaml names none.
const DEFAULTS: [(&str, u16); 2] = [("control:", 9090), ("export_addr:", 9091)];

/// The features of a quick build: all but WebAssembly, whose compiler of modules takes minutes to build. The gateway
/// says so where a configuration has such plugins.
const QUICK_FEATURES: [&str; 3] = ["--no-default-features", "--features", "gateway/lua"];

/// `cargo x run`: the gateway, on [`SAMPLE`] unless a configuration is named. Returns only if cargo cannot be started.
/// This process becomes cargo, and cargo the gateway, so that a signal to `cargo x run` reaches the gateway and none
/// outlives it.
pub fn run(args: &[String]) -> Result<()> {
    // The first build takes minutes: a taken port is reported before it.
    let named = configuration(args);
    let config = root().join(named.unwrap_or(SAMPLE)).join("config.yaml");
    if !args.iter().any(|arg| arg == "--reuse-port")
        && let Some(report) = taken(&config)
    {
        match named {
            None => bail!("{report}"),
            Some(_) => eprintln!("warning: {report}"),
        }
    }
    exec(command(args))
}

/// `cargo x sluice`: any command of the program, in the current folder.
pub fn sluice(args: &[String]) -> Result<()> {
    exec(here(&[&["--package", "gateway"][..], &QUICK_FEATURES].concat(), args))
}

/// Any other command.
pub fn task(args: &[String]) -> Result<()> {
    exec(here(&["--package", "xtask", "--bin", "tasks"], args))
}

/// Runs a program in the current folder, so that relative paths among its arguments are those of the user.
fn here(program: &[&str], args: &[String]) -> Command {
    let mut command = Command::new(cargo().get_program());
    command.args(["run", "--manifest-path"]).arg(root().join("Cargo.toml"));
    command.args(["--profile", "quick"]).args(program).arg("--").args(args);
    compile_lua_fast(&mut command);
    command
}

/// LuaJIT's build does not follow cargo's profiles. Without optimisation its C code compiles in a third of the time; its
/// interpreter is assembly.
fn compile_lua_fast(command: &mut Command) {
    command.env("CCOPT", "-O0 -fomit-frame-pointer");
}

fn exec(mut command: Command) -> Result<()> {
    let shown = show(&command);
    // Standard output is the gateway's.
    eprintln!("$ {shown}");
    Err(Error::new(command.exec()).context(format!("cannot start `{shown}`")))
}

fn command(args: &[String]) -> Command {
    let (release, args): (Vec<_>, Vec<_>) = args.iter().partition(|arg| *arg == "--release");
    let profile = if release.is_empty() { "quick" } else { "release" };
    // Cargo shows how far it is: the first build takes minutes.
    let mut command = cargo();
    if release.is_empty() {
        compile_lua_fast(&mut command);
    }
    command.args(["run", "--profile", profile, "--package", "gateway"]);
    if release.is_empty() {
        command.args(QUICK_FEATURES);
    }
    command.args(["--", "run"]);
    // Options alone, such as `--data DIR`, go with the sample.
    if args.first().is_none_or(|first| first.starts_with('-')) {
        command.arg(SAMPLE);
    }
    command.args(args);
    command
}

/// The configuration that is named: the first word, unless that is an option.
fn configuration(args: &[String]) -> Option<&str> {
    args.iter().find(|arg| *arg != "--release").map(String::as_str).filter(|first| !first.starts_with('-'))
}

/// Which ports of a configuration another program listens on, and what to do.
fn taken(config: &Path) -> Option<String> {
    let text = std::fs::read_to_string(config).ok()?;
    let is_taken = |port: &u16| match TcpListener::bind((Ipv4Addr::LOCALHOST, *port)) {
        Err(error) => error.kind() == std::io::ErrorKind::AddrInUse,
        Ok(_) => false,
    };
    let taken: Vec<String> = ports(&text).into_iter().filter(is_taken).map(|port| port.to_string()).collect();
    let first = taken.first()?;
    let config = config.strip_prefix(root()).unwrap_or(config).display();
    Some(format!(
        "port {} is in use by another program, and the gateway would not start with {config}\n  help: stop that program \
         (`ss -ltnp 'sport = :{first}'` names it), or change the port in {config}: `apisix.node_listen`, \
         `apisix.ssl.listen`, `deployment.admin.admin_listen` (9180), `apisix.control` (9090), \
         `plugin_attr.prometheus.export_addr` (9091)",
        taken.join(", ")
    ))
}

/// The ports that a `config.yaml` names in lines of their own, and the defaults that it leaves.
fn ports(text: &str) -> Vec<u16> {
    let lines = || text.lines().map(|line| line.trim().trim_start_matches("- "));
    let named = lines().filter_map(|line| line.strip_prefix("port:")?.trim().parse().ok());
    let left = DEFAULTS.iter().filter(|(key, _)| !lines().any(|line| line.starts_with(key)));
    named.chain(left.map(|(_, port)| *port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(args: &[&str]) -> Vec<String> {
        args.iter().map(|arg| (*arg).to_owned()).collect()
    }

    #[test]
    fn release_is_for_cargo_and_the_rest_for_the_gateway() {
        let line = |args: &[&str]| {
            show(&command(&words(args))).split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap()
        };
        assert_eq!(
            line(&[]),
            "run --profile quick --package gateway --no-default-features --features gateway/lua -- run conf"
        );
        assert_eq!(line(&["--release", "mine"]), "run --profile release --package gateway -- run mine");
        assert_eq!(
            line(&["--data", "d", "--release"]),
            "run --profile release --package gateway -- run conf --data d"
        );
        for (args, named) in
            [(&["--release", "mine"][..], Some("mine")), (&["--data", "d"], None), (&[], None)]
        {
            assert_eq!(configuration(&words(args)), named);
        }
    }

    #[test]
    fn a_taken_port_of_the_configuration_is_named() {
        let folder = std::env::temp_dir().join(format!("sluice-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let config = folder.join("config.yaml");
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = other.local_addr().unwrap().port();
        let text = format!(
            "apisix:\n  node_listen:\n    - port: {port}\n      # port: 1\n  control:\n  export_addr:\n"
        );
        assert_eq!(ports(&text), [port]);
        std::fs::write(&config, text).unwrap();
        assert!(taken(&config).unwrap().starts_with(&format!("port {port} is in use by another program")));
        drop(other);
        assert_eq!(taken(&config), None);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(ports("port: 9080\n"), [9080, 9090, 9091]);
    }
}
