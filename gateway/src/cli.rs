//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

use crate::say;

/// An API gateway that runs Apache APISIX's configuration, in one binary.
#[derive(Debug, Parser)]
#[command(
    name = "sluice",
    version,
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        sluice run                      conf/config.yaml if it is there, else built-in defaults\n  \
        sluice run /etc/sluice          a folder with config.yaml (and apisix.yaml)\n  \
        sluice run routes.yaml          only these routes, from one declarative file\n  \
        sluice run kong.yml             a file of Kong, Envoy, nginx, Spring Cloud Gateway or Zuul\n  \
        sluice run --to http://web:80   forwards everything to one server, without files\n  \
        sluice check conf               reports mistakes in the files, with their lines\n  \
        sluice explain GET /a conf      shows which route takes the request, and why\n  \
        sluice status conf              shows what the gateway started with conf serves\n  \
        sluice backup FILE conf         saves the data folder while the gateway runs\n\n\
        Signals: TERM and INT stop within 10 s, QUIT drains first, HUP rereads the files, USR1 reopens\n  \
        the log files, USR2 starts the binary again and hands over to it."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Starts the gateway in the foreground
    ///
    /// It logs to standard error, or to the file in `nginx_config.error_log`, until a signal stops it.
    #[command(
        alias = "start",
        after_help = "Examples:\n  \
            sluice run conf                              a folder with config.yaml\n  \
            sluice run nginx.conf                        another gateway's file, where it listens itself\n  \
            sluice run kong.yml --listen :8080           the same on another port\n  \
            sluice run --to http://127.0.0.1:1980        one server, on port 9080\n  \
            sluice run --to http://10.0.0.1:1980 --to http://10.0.0.2:1980 --listen :8080\n  \
            sluice run --to http://127.0.0.1:1980 --domain example.com\n\n\
            With --to, `sluice explain` and `sluice status` work as usual; the Admin API is off.\n\n\
            A file of another gateway is read again when it or an included file changes. Routes\n\
            whose access control, limits or TLS verification are not carried over answer 503\n\
            until you accept that with --accept; `sluice check FILE` lists all differences."
    )]
    Run(Start),
    /// Checks configuration and resources without starting; exit code 1 if there are errors
    ///
    /// Reads config.yaml, the file of resources or the store of a stopped gateway, and dumps of etcd and ADC in the
    /// folder. Of a file of another gateway it lists all constructs that are not carried over, or not exactly. Connects
    /// to nothing.
    #[command(
        alias = "test",
        alias = "validate",
        after_help = "Examples:\n  \
            sluice check conf                  a folder with config.yaml\n  \
            sluice check kong.yml              all differences of the imported file, with their lines\n  \
            sluice check kong.yml --strict     exit code 1 if one of them affects traffic\n  \
            sluice check kong.yml --json       the same for programs"
    )]
    Check {
        #[command(flatten)]
        files: Files,
        #[command(flatten)]
        forward: Forward,
        /// Prints JSON
        #[arg(long, help_heading = "Options")]
        json: bool,
        /// Treats warnings as errors, such as unknown keys and features that this version lacks
        #[arg(long, help_heading = "Options")]
        strict: bool,
        /// Omits warnings about valid settings: unreachable routes, unused resources, secrets in the clear, weak TLS,
        /// missing authentication
        #[arg(long, help_heading = "Options")]
        no_analysis: bool,
        #[command(flatten)]
        import: Import,
    },
    /// Writes a file of another gateway as an apisix.yaml, with the line that each resource comes from
    ///
    /// The differences stand at the top as comments. `sluice run` on the result serves the same as `sluice run FILE`;
    /// routes that are not served for a difference are in it as routes that answer 503. The addresses to listen on
    /// belong to config.yaml: with a folder as output they are written there, otherwise they are a comment.
    #[command(after_help = "Examples:\n  \
        sluice convert kong.yml                     to standard output\n  \
        sluice convert nginx.conf -o apisix.yaml    to a new file\n  \
        sluice convert nginx.conf -o conf/          to conf/apisix.yaml and conf/config.yaml; then `sluice run conf`")]
    Convert {
        /// A file of Kong, Envoy, nginx, Spring Cloud Gateway or Zuul
        file: PathBuf,
        /// A new file, or a folder for apisix.yaml and config.yaml; only their owner may read these files
        #[arg(short, long, value_name = "FILE|DIR")]
        output: Option<PathBuf>,
        #[command(flatten)]
        import: Import,
    },
    /// Shows which route, plugins and upstream a request would meet, and why
    ///
    /// Reads the file of resources if PATH names one; otherwise asks the running gateway, or reads the store if none
    /// runs. Sends and counts nothing.
    Explain(Explain),
    /// Shows what the running gateway serves: version, addresses, resources, rejected resources
    ///
    /// The exit code is 0 if the gateway is ready for traffic, otherwise 1: a health check of a container.
    Status {
        #[command(flatten)]
        files: Files,
        /// Prints JSON
        #[arg(long)]
        json: bool,
        /// Longest wait for the whole answer, such as 500ms
        #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
        timeout: Duration,
    },
    /// Shows rates, errors and latencies of the running gateway, its workers, and its busiest routes and nodes
    ///
    /// In a terminal it is drawn again each second. Keys: Tab and arrows choose, Enter opens, s sorts, r reverses, p
    /// pauses, q and Ctrl-C end it, ? lists all.
    #[command(after_help = "Examples:\n  \
        sluice top\n  \
        SLUICE_ADMIN_KEY=... sluice top --admin http://10.0.0.5:9180")]
    Top {
        #[command(flatten)]
        files: Files,
        #[command(flatten)]
        remote: Remote,
        /// Writes one picture and ends, as it does into a pipe
        #[arg(long)]
        once: bool,
    },
    /// Shows requests of the running gateway as they end, a line each
    ///
    /// Conditions are route=ID, status=5xx or 404, path=/exact or /prefix*, consumer=NAME, host=NAME, method=NAME and
    /// min_latency=TIME; all must hold.
    #[command(after_help = "Examples:\n  \
        sluice tap                               every request\n  \
        sluice tap -c status=5xx                 requests that failed\n  \
        sluice tap conf -c path=/api/* -c min_latency=250ms --json")]
    Tap {
        /// A condition, NAME=VALUE; may be repeated
        #[arg(short, long = "condition", value_name = "NAME=VALUE")]
        conditions: Vec<String>,
        #[command(flatten)]
        files: Files,
        #[command(flatten)]
        remote: Remote,
        /// Prints JSON, one object a line
        #[arg(long)]
        json: bool,
        /// Ends after this number of requests
        #[arg(short = 'n', long, value_name = "NUMBER")]
        limit: Option<u64>,
    },
    /// Lists the routes of the running gateway with their traffic
    Routes {
        #[command(flatten)]
        files: Files,
        #[command(flatten)]
        remote: Remote,
        /// Lists only routes with this text in their id, name, host or path
        #[arg(short, long, value_name = "TEXT")]
        search: Option<String>,
        /// Prints JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// Makes the running gateway reread its files, as SIGHUP does, and reports the outcome
    ///
    /// Rereads apisix.yaml and the plugin list of config.yaml; other settings take effect at the next start or upgrade.
    Reload(Files),
    /// Replaces the running gateway by the current binary, as SIGUSR2 does, without losing connections
    ///
    /// The running process starts its binary again and passes its sockets to it. If the new process does not start,
    /// the old one continues.
    Upgrade(Files),
    /// Writes the resources of a store as an apisix.yaml, including the keys of consumers
    ///
    /// Reads the store of a stopped gateway, or asks the Admin API of a running one, which shows no private keys.
    Export {
        #[command(flatten)]
        files: Files,
        /// Writes to this new file, which only its owner may read, instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Leaves out the private keys of ssl resources and upstreams, which a running gateway does not show
        ///
        /// Such a file is for reading and comparing. `sluice apply` rejects certificates without a key; `PUT
        /// /apisix/admin/configs` keeps the stored key where the certificate is unchanged.
        #[arg(long)]
        without_keys: bool,
    },
    /// Writes the store, its keys and the admin key to one file; a running gateway goes on serving
    ///
    /// The file is a tar archive that only its owner may read. It decrypts the store, so keep it as safe as the data
    /// folder. config.yaml is not in it.
    Backup {
        /// A new file, such as sluice.backup
        file: PathBuf,
        #[command(flatten)]
        files: Files,
    },
    /// Puts a backup into the data folder of a gateway that is stopped, after reading all of it
    ///
    /// Nothing is replaced unless the whole backup can be read.
    Restore {
        /// A file written by `sluice backup`
        file: PathBuf,
        #[command(flatten)]
        files: Files,
        /// Replaces the store and the keys in a data folder that is not empty
        #[arg(long)]
        force: bool,
    },
    /// Replaces all resources of the running gateway by those of a file, in one write
    ///
    /// `sluice rollback` takes the change back.
    Apply {
        /// An apisix.yaml or apisix.json
        file: PathBuf,
        #[command(flatten)]
        files: Files,
        /// Only shows mistakes in the file and what would change
        #[arg(long)]
        dry_run: bool,
        /// Undoes the change after this time, such as 5m, unless `sluice confirm` is run before
        #[arg(long, value_name = "TIME", conflicts_with = "dry_run")]
        confirm: Option<String>,
        /// Undoes the change at once if a larger share of requests fails, such as 1%
        #[arg(long, value_name = "SHARE", requires = "confirm")]
        max_error_rate: Option<String>,
        /// Undoes the change at once if one request in a hundred takes longer, such as 200ms
        #[arg(long, value_name = "TIME", requires = "confirm")]
        max_p99: Option<String>,
        /// Length of the most recent period over which the bounds are measured, such as 10s
        #[arg(long, value_name = "TIME", requires = "confirm")]
        window: Option<String>,
    },
    /// Confirms a change made with `apply --confirm`, or undoes it
    Confirm {
        #[command(flatten)]
        files: Files,
        /// Undoes the change now
        #[arg(long)]
        undo: bool,
    },
    /// Copies resources into etcd or out of it
    Etcd {
        #[command(subcommand)]
        command: EtcdCommand,
    },
    /// Lists the writes to the store of the running gateway, newest first
    History {
        #[command(flatten)]
        files: Files,
        /// Number of writes to list
        #[arg(short, long, default_value_t = 20)]
        limit: u32,
    },
    /// Shows the differences between two revisions as JSON
    Diff {
        /// A revision, as `sluice history` numbers it
        from: u64,
        /// The revision to compare it with
        to: u64,
        #[command(flatten)]
        files: Files,
    },
    /// Restores all resources as they were after a revision
    ///
    /// The rollback is a write like any other: it gets a revision of its own and can be rolled back.
    Rollback {
        /// A revision, as `sluice history` numbers it
        revision: u64,
        #[command(flatten)]
        files: Files,
    },
    /// Works on plugins in Lua
    #[cfg(feature = "lua")]
    Script {
        #[command(subcommand)]
        command: ScriptCommand,
    },
    /// Prints the version
    Version,
    /// Prints a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Prints the manual page, or writes the pages of all commands to a folder
    Man {
        /// An existing folder, which gets sluice.1, sluice-run.1 and so on
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Prints the schemas of all plugins and the settings of config.yaml as JSON
    #[command(hide = true)]
    Schema,
}

/// `sluice etcd`: the cluster is that of `deployment.etcd` in config.yaml, for every provider.
#[derive(Debug, Subcommand)]
pub enum EtcdCommand {
    /// Writes the resources of a file or of an embedded store into etcd
    Import {
        #[command(flatten)]
        files: Files,
        /// An apisix.yaml or apisix.json, or the data folder of a stopped gateway
        #[arg(long, value_name = "SOURCE")]
        from: PathBuf,
        /// Deletes resources in etcd that are not in SOURCE
        #[arg(long)]
        replace: bool,
    },
    /// Writes the resources in etcd, including the keys of consumers, to an apisix.yaml or an embedded store
    Export {
        #[command(flatten)]
        files: Files,
        /// A new file that ends in .yaml, or a data folder without resources
        #[arg(long, value_name = "TARGET")]
        to: PathBuf,
    },
}

#[cfg(feature = "lua")]
#[derive(Debug, Subcommand)]
pub enum ScriptCommand {
    /// Runs a plugin file against a described request, in a gateway of its own on loopback, and prints its
    /// requests, response and log lines
    ///
    /// The exit code is 1 if the plugin does not load, its settings are invalid, it fails, or the result is not as
    /// expected.
    #[command(after_help = "Example:\n  \
        sluice script test apisix/plugins/our-check.lua    with our-check.yaml beside it")]
    Test {
        /// The file of the plugin, NAME.lua
        file: PathBuf,
        /// The request and the expected result, in YAML or JSON; NAME.yaml, NAME.yml or NAME.json beside the file otherwise
        description: Option<PathBuf>,
    },
}

/// A request to be explained.
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// GET, POST or another method
    pub method: String,
    /// http://host/path?query, https://…, or only the path
    pub url: String,
    #[command(flatten)]
    pub files: Files,
    /// A header as `Name: value`; may be repeated
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
    /// The client's address, behind all trusted proxies
    ///
    /// Default: 127.0.0.1
    #[arg(long, value_name = "IP")]
    pub remote_addr: Option<IpAddr>,
    /// The request's body, for routes and plugins that read it
    #[arg(long, value_name = "TEXT")]
    pub body: Option<String>,
    /// Uses a past revision of the running gateway, as `sluice history` numbers it
    #[arg(long, value_name = "N")]
    pub revision: Option<u64>,
    /// Asks the running gateway even if PATH names a file of resources
    #[arg(long)]
    pub running: bool,
    /// Asks the gateway whose control API has this address
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "running")]
    pub control: Option<SocketAddr>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub import: Import,
}

/// Arguments of `sluice run`.
#[derive(Debug, clap::Args)]
pub struct Start {
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    pub forward: Forward,
    /// Shares the traffic ports with a gateway that is already running
    ///
    /// The kernel distributes new connections over both until one of them stops. The Admin API, control API and metrics
    /// ports and the data folder must differ, or be off. To replace a running gateway, use `sluice upgrade`, which
    /// needs none of this.
    #[arg(long, help_heading = "Options")]
    pub reuse_port: bool,
    #[command(flatten)]
    pub import: Import,
}

/// A gateway for one upstream, without configuration files.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Without config.yaml")]
pub struct Forward {
    /// Forwards all requests to this server; several share the requests in turn
    ///
    /// SCHEME://HOST[:PORT] with one scheme for all: http, https, h2c (HTTP/2 without TLS), h2 (HTTP/2 with TLS), grpc or
    /// grpcs. Certificates of https, h2 and grpcs servers are verified, and the requests to them have the server's name as
    /// Host; requests to the others keep the client's. Requests are logged to standard output.
    #[arg(long, value_name = "URL")]
    pub to: Vec<String>,
    /// Address for clients, such as :8080, 127.0.0.1:8080 or [::1]:8080; may be repeated
    ///
    /// Default: :9080, which is on all addresses of this machine; with --domain :443 for HTTPS and :80, which redirects to
    /// it. With --domain, addresses given here are for HTTPS. With a file of resources or of another gateway, they
    /// replace all addresses that the file names, and may begin with https://, tcp://, tls:// or udp://.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<String>,
    /// Serves this name by HTTPS with a certificate of Let's Encrypt, whose terms you accept by this; may be repeated
    ///
    /// Other names get 404. The name must lead to port 443 of this machine, where it is proved (tls-alpn-01). Certificates
    /// and the account are kept in the data folder, by default $XDG_STATE_HOME/sluice/to.
    #[arg(long, value_name = "NAME", requires = "to")]
    pub domain: Vec<String>,
    /// Another ACME server than Let's Encrypt: the URL of its directory
    #[arg(long, value_name = "URL", requires = "domain")]
    pub acme_directory: Option<String>,
}

/// How a file of another gateway is imported.
#[derive(Debug, Default, Clone, clap::Args)]
#[command(next_help_heading = "Files of other gateways")]
pub struct Import {
    /// Format of the file, which is otherwise recognised by its content
    ///
    /// kong is Kong or decK, envoy is Envoy's bootstrap in YAML or JSON, scg is Spring Cloud Gateway (application.yml or
    /// .properties), zuul is Zuul 1, apisix is a file of resources.
    #[arg(long, value_name = "FORMAT", value_parser = FORMATS)]
    pub from: Option<String>,
    /// Active profile of a Spring application, whose application-NAME.yml is read too; may be repeated
    #[arg(long, value_name = "NAME")]
    pub profile: Vec<String>,
    /// Reads included files outside of the folder of the file as well
    #[arg(long)]
    pub allow_outside: bool,
    /// Serves routes although a guard at this line is not carried over; may be repeated
    ///
    /// A guard is access control, a limit or a verification of TLS. `sluice check` lists those that are missing here,
    /// each with its file and line.
    #[arg(long, value_name = "FILE:LINE")]
    pub accept: Vec<String>,
    /// Serves routes although guards are not carried over
    #[arg(long)]
    pub accept_guards: bool,
}

/// The values of `--from`.
const FORMATS: [&str; 6] = ["kong", "envoy", "nginx", "scg", "zuul", "apisix"];

/// The configuration and the data folder.
#[derive(Debug, clap::Args)]
pub struct Files {
    /// config.yaml, a folder with config.yaml or apisix.yaml, a file of resources, or a file of another gateway
    ///
    /// Default: conf/config.yaml if it exists, otherwise built-in defaults with the embedded store and the Admin API on
    /// 127.0.0.1:9180. Commands that ask a running gateway find it by the address of its control API in this
    /// configuration.
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Folder of the embedded store, its key and the generated admin key
    ///
    /// Default: `data` beside config.yaml, or $XDG_STATE_HOME/sluice without a config.yaml.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Another machine to ask in place of the running gateway.
#[derive(Debug, clap::Args)]
pub struct Remote {
    /// Asks this Admin API, such as https://10.0.0.5:9180, with the key in SLUICE_ADMIN_KEY
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// Reads the key of that Admin API from a file
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub key_file: Option<PathBuf>,
    /// Trusts the authorities in this PEM file in place of the system's, for https
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub ca: Option<PathBuf>,
}

/// Writes a completion script to standard output.
pub fn completions(shell: clap_complete::Shell) {
    clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut std::io::stdout());
}

/// Writes the manual page to standard output, or the pages of all commands to a folder.
///
/// # Errors
/// The folder does not exist or cannot be written.
pub fn man(out: Option<&Path>) -> anyhow::Result<()> {
    match out {
        Some(folder) => clap_mangen::generate_to(Cli::command(), folder)
            .with_context(|| format!("cannot write manual pages to {}", folder.display())),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            say::out(String::from_utf8_lossy(&page).trim_end());
            Ok(())
        }
    }
}

fn time(text: &str) -> Result<Duration, String> {
    model::boot::time(&text.into())
        .map_err(|invalid| format!("expected {}", invalid.expected.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands and arguments without a help text, below a command.
    fn without_help(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        if command.get_about().is_none() {
            found.push(path.to_owned());
        }
        let arguments = command.get_arguments().filter(|one| one.get_help().is_none());
        found.extend(arguments.map(|one| format!("{path} {}", one.get_id())));
        for sub in command.get_subcommands() {
            without_help(sub, &format!("{path} {}", sub.get_name()), found);
        }
    }

    #[test]
    fn every_command_and_argument_has_a_help_text() {
        let mut found = Vec::new();
        let mut command = Cli::command();
        command.build();
        without_help(&command, "sluice", &mut found);
        assert!(found.is_empty(), "{found:?}");
    }
}
