//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};

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
        sluice check conf               reports what is wrong in the files, and where\n  \
        sluice explain GET /a conf      which route takes the request, and why\n  \
        sluice status conf              what the instance started with conf serves\n\n\
        Signals: TERM and INT stop quickly, QUIT drains first, HUP rereads the files, USR1 reopens the\n  \
        log files, USR2 starts the binary anew and hands over to it."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Starts the gateway in the foreground
    #[command(alias = "start")]
    Run(Start),
    /// Checks configuration and resources without starting; exit code 1 if anything is wrong
    #[command(alias = "test", alias = "validate")]
    Check {
        #[command(flatten)]
        files: Files,
        /// Treats warnings as errors: unknown keys, and what this version does not support
        #[arg(long)]
        strict: bool,
        /// Leaves out what works but is worth a second look: routes out of reach, unused resources, secrets
        /// in the clear, weak TLS, missing authentication
        #[arg(long)]
        no_analysis: bool,
    },
    /// Says what would become of a request: the route, why that one, the plugins, the upstream
    ///
    /// By the file of resources, if the configuration names one; else by the running instance, or by its store
    /// if none runs. Nothing is sent and nothing is counted.
    Explain(Explain),
    /// Shows what the running instance serves: version, addresses, resources, what is rejected
    Status {
        #[command(flatten)]
        files: Files,
        /// Prints all of it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Makes the running instance reread its files, as SIGHUP does, and reports the outcome
    Reload(Files),
    /// Has the running instance start its binary anew, as SIGUSR2 does, and hand over to it: no connection is lost
    Upgrade(Files),
    /// Writes the resources of a store as an apisix.yaml, including the keys of consumers
    Export {
        #[command(flatten)]
        files: Files,
        /// A new file instead of the standard output; only its owner may read it
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Leaves out the private keys of ssl resources and upstreams, which a running gateway does not show
        ///
        /// Where a store has such a resource with the same certificate, its key stays when the file is written
        /// back.
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
    /// Makes the running instance serve what a declarative file holds, and nothing else
    Apply {
        /// An apisix.yaml or apisix.json
        file: PathBuf,
        #[command(flatten)]
        files: Files,
        /// Only says what would change, and what is wrong with the file
        #[arg(long)]
        dry_run: bool,
        /// Undoes it after this time, such as 5m, unless `sluice confirm` comes before
        #[arg(long, value_name = "TIME", conflicts_with = "dry_run")]
        confirm: Option<String>,
        /// Undoes it at once when a larger part of the requests fails than this, such as 1%
        #[arg(long, value_name = "PART", requires = "confirm")]
        max_error_rate: Option<String>,
        /// Undoes it at once when one request in a hundred takes longer than this, such as 200ms
        #[arg(long, value_name = "TIME", requires = "confirm")]
        max_p99: Option<String>,
        /// Length of the most recent period to judge
        #[arg(long, value_name = "TIME", requires = "confirm")]
        window: Option<String>,
    },
    /// Keeps what was changed with --confirm, or takes it back
    Confirm {
        #[command(flatten)]
        files: Files,
        /// Takes it back at once
        #[arg(long)]
        undo: bool,
    },
    /// Moves resources into etcd and out of it
    Etcd {
        #[command(subcommand)]
        command: EtcdCommand,
    },
    /// Lists what was written to the store of a running instance, newest first
    History {
        #[command(flatten)]
        files: Files,
        /// Number of writes to list
        #[arg(short, long, default_value_t = 20)]
        limit: u32,
    },
    /// Shows what differs between two revisions, as JSON
    Diff {
        from: u64,
        to: u64,
        #[command(flatten)]
        files: Files,
    },
    /// Puts everything back to what it was after a revision; that is a write of its own
    Rollback {
        revision: u64,
        #[command(flatten)]
        files: Files,
    },
    /// Prints the version
    Version,
    /// Prints a completion script for a shell
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
    /// Prints the schemas of all plugins as JSON
    #[command(hide = true)]
    Schema,
}

/// `sluice etcd`: the cluster is that of `deployment.etcd` in config.yaml, whatever its provider.
#[derive(Debug, Subcommand)]
pub enum EtcdCommand {
    /// Writes what a declarative file or the embedded store holds into etcd
    Import {
        #[command(flatten)]
        files: Files,
        /// An apisix.yaml or apisix.json, or the data folder of a gateway that does not run
        #[arg(long, value_name = "SOURCE")]
        from: PathBuf,
        /// Makes etcd hold what SOURCE holds and nothing else
        #[arg(long)]
        replace: bool,
    },
    /// Writes what etcd holds, including the keys of consumers, as an apisix.yaml or an embedded store
    Export {
        #[command(flatten)]
        files: Files,
        /// A new file that ends in .yaml, or a data folder without resources
        #[arg(long, value_name = "TARGET")]
        to: PathBuf,
    },
}

/// A request to be explained.
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// GET, POST or another
    pub method: String,
    /// http://host/path?query, https://… or only the path
    pub url: String,
    #[command(flatten)]
    pub files: Files,
    /// A header, as `Name: value`; may be given several times
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
    /// The client's address as routes and plugins see it
    #[arg(long, value_name = "IP")]
    pub remote_addr: Option<IpAddr>,
    /// The request's body, where routes or plugins look at it
    #[arg(long)]
    pub body: Option<String>,
    /// As of a past revision of the running instance
    #[arg(long, value_name = "N")]
    pub revision: Option<u64>,
    /// Asks the running instance, though the resources are in a file
    #[arg(long)]
    pub running: bool,
    /// Asks the control API at this address
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "running")]
    pub control: Option<SocketAddr>,
    /// Prints all of it as JSON
    #[arg(long)]
    pub json: bool,
}

/// What a start is told.
#[derive(Debug, clap::Args)]
pub struct Start {
    #[command(flatten)]
    pub files: Files,
    /// Share the traffic ports with a gateway that is already running, in order to replace it
    #[arg(long)]
    pub reuse_port: bool,
}

/// Which configuration.
#[derive(Debug, clap::Args)]
pub struct Files {
    /// config.yaml, a folder that holds it, or a declarative resource file (apisix.yaml)
    ///
    /// Without it: conf/config.yaml if there is one, else built-in defaults with the embedded
    /// store and the Admin API on 127.0.0.1:9180.
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Folder of the embedded store and the generated admin key
    ///
    /// Default: `data` beside the configuration, or $XDG_STATE_HOME/sluice without one.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Writes a completion script to standard output.
pub fn completions(shell: clap_complete::Shell) {
    clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut std::io::stdout());
}
