//! The servers behind every gateway: Debian's nginx with its echo module, and our own.

pub mod echo;
pub mod grpc;
mod origin;
pub mod redis;
mod slow;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use minijinja::context;
use serde::Serialize;

use crate::load::{Target, grpc_message};
use crate::machine::Cores;
use crate::probe;
use crate::process::{Launch, Process};
use crate::template;

use origin::Origin;

const CONFIG: &str = include_str!("../../load/upstream.conf");

/// Path of the module in Debian's package `libnginx-mod-http-echo`.
pub const ECHO_MODULE: &str = "/usr/lib/nginx/modules/ngx_http_echo_module.so";

/// The response of the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// 4,000 bytes, chunked, as the seeds' `echo_duplicate` does.
    Chunked4000,
    /// 4,000 bytes with Content-Length.
    Length4000,
    /// 12 bytes with Content-Length.
    Short12,
    /// A file of 1 MiB.
    Large1M,
    /// 4,000 bytes with Content-Length, the second half after a pause (`slow.rs`).
    Slow4000,
    /// A gRPC message, with trailers.
    Grpc,
    /// The echo of a WebSocket message.
    Echo,
}

impl Answer {
    pub fn body(self) -> u64 {
        match self {
            Self::Chunked4000 | Self::Length4000 => 4_000,
            Self::Short12 => 12,
            Self::Large1M => 1 << 20,
            Self::Slow4000 => 4_000,
            Self::Grpc => grpc_message().len() as u64,
            Self::Echo => 0,
        }
    }

    fn offset(self) -> u16 {
        match self {
            Self::Chunked4000 => 0,
            Self::Length4000 => 1,
            Self::Short12 => 2,
            Self::Large1M => 3,
            Self::Slow4000 => 4,
            Self::Grpc => 5,
            Self::Echo => 6,
        }
    }
}

pub struct Upstream {
    process: Process,
    first_port: u16,
    _own: [Origin; 3],
}

impl Upstream {
    /// Starts the servers on `cores`, nginx with one worker per core, on `first_port` and the next
    /// six ports.
    ///
    /// # Errors
    /// A server does not start or does not respond as expected.
    pub fn start(folder: &Path, first_port: u16, cores: &Cores) -> Result<Self> {
        if !Path::new(ECHO_MODULE).exists() {
            bail!("{ECHO_MODULE} is missing: apt-get install libnginx-mod-http-echo");
        }
        std::fs::create_dir_all(folder)?;
        let values = context! {
            echo_module => ECHO_MODULE,
            folder => folder.display().to_string(),
            workers => cores.0.len(),
            chunked_port => first_port,
            length_port => first_port + 1,
            short_port => first_port + 2,
            large_port => first_port + 3,
            text => "1234567890".repeat(400),
        };
        template::write(&folder.join("nginx.conf"), CONFIG, values)?;
        std::fs::write(folder.join("large"), "x".repeat(Answer::Large1M.body() as usize))?;
        let launch = Launch::new("/usr/sbin/nginx", folder)
            .arg("-e")
            .arg(folder.join("error.log").display().to_string())
            .arg("-c")
            .arg(folder.join("nginx.conf").display().to_string());
        let own = |answer: Answer| ([127, 0, 0, 1], first_port + answer.offset()).into();
        let mut upstream = Self {
            process: Process::start("the upstream", &launch, cores)?,
            first_port,
            _own: [
                slow::start(own(Answer::Slow4000), cores)?,
                grpc::start(own(Answer::Grpc), cores)?,
                echo::start(own(Answer::Echo), cores)?,
            ],
        };
        for answer in
            [Answer::Chunked4000, Answer::Length4000, Answer::Short12, Answer::Large1M, Answer::Slow4000]
        {
            let target = Target::plain(upstream.address(answer), answer.body());
            probe::wait_ready(&mut upstream.process, &target, Duration::from_secs(10))
                .context("the upstream")?;
        }
        Ok(upstream)
    }

    pub fn address(&self, answer: Answer) -> SocketAddr {
        ([127, 0, 0, 1], self.first_port + answer.offset()).into()
    }
}
