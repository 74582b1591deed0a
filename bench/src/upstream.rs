//! The server behind every gateway: Debian's nginx with its echo module.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use minijinja::context;
use serde::Serialize;

use crate::load::Target;
use crate::machine::Cores;
use crate::probe;
use crate::process::{Launch, Process};
use crate::template;

const CONFIG: &str = include_str!("../load/upstream.conf");

/// Where Debian's package `libnginx-mod-http-echo` puts the module.
pub const ECHO_MODULE: &str = "/usr/lib/nginx/modules/ngx_http_echo_module.so";

/// What the upstream answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// 4,000 bytes, chunked, as the seeds' `echo_duplicate` does.
    Chunked4000,
    /// 4,000 bytes with Content-Length.
    Length4000,
    /// 12 bytes with Content-Length.
    Short12,
}

impl Answer {
    pub fn body(self) -> u64 {
        match self {
            Self::Chunked4000 | Self::Length4000 => 4_000,
            Self::Short12 => 12,
        }
    }

    fn offset(self) -> u16 {
        match self {
            Self::Chunked4000 => 0,
            Self::Length4000 => 1,
            Self::Short12 => 2,
        }
    }
}

pub struct Upstream {
    process: Process,
    first_port: u16,
}

impl Upstream {
    /// Starts it on `cores`, one worker per core, listening on `first_port` and the next two.
    ///
    /// # Errors
    /// When nginx does not start or does not answer as it should.
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
            text => "1234567890".repeat(400),
        };
        template::write(&folder.join("nginx.conf"), CONFIG, values)?;
        let launch = Launch::new("/usr/sbin/nginx", folder)
            .arg("-e")
            .arg(folder.join("error.log").display().to_string())
            .arg("-c")
            .arg(folder.join("nginx.conf").display().to_string());
        let mut upstream = Self { process: Process::start("the upstream", &launch, cores)?, first_port };
        for answer in [Answer::Chunked4000, Answer::Length4000, Answer::Short12] {
            let target =
                Target { address: upstream.address(answer), paths: 1, key: None, body: answer.body() };
            probe::wait_ready(&mut upstream.process, &target, Duration::from_secs(10))
                .context("the upstream")?;
        }
        Ok(upstream)
    }

    pub fn address(&self, answer: Answer) -> SocketAddr {
        ([127, 0, 0, 1], self.first_port + answer.offset()).into()
    }
}
