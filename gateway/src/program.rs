//! What the Admin and control APIs may ask of the running program.

use std::path::PathBuf;
use std::sync::OnceLock;

use admin::{Program, Published, Rejected};
use control::Handle;
use proxy::Watch;
use snapshot::swap::Observer;

/// The running gateway.
pub struct Running {
    pub observer: Observer,
    pub pipeline: Handle,
    /// The boot file, for reading its list of plugins again.
    pub config: Option<PathBuf>,
    /// How the workers are, once they were started.
    pub workers: OnceLock<Watch>,
}

impl Program for Running {
    fn published(&self) -> Published {
        let report = self.pipeline.report();
        let rejected = report.rejected.iter().map(|one| Rejected {
            key: one.key.to_string(),
            pointer: one.invalid.pointer.clone(),
            reason: one.invalid.reason.clone(),
            hint: one.invalid.hint.clone(),
        });
        let findings = report.findings.iter().map(|finding| Rejected {
            key: format!("{}:{}:{}", finding.file, finding.line, finding.column),
            pointer: finding.pointer.clone(),
            reason: finding.message.clone(),
            hint: finding.hint.clone(),
        });
        Published {
            revision: self.observer.published(),
            workers: self.observer.held(),
            rejected: rejected.chain(findings).collect(),
        }
    }

    fn read_plugins(&self) -> Result<Option<Vec<String>>, String> {
        let Some(config) = &self.config else { return Ok(None) };
        match crate::files::read_boot(config) {
            Ok((boot, _)) => Ok(boot.plugins),
            Err(diagnostics) => {
                Err(diagnostics.iter().map(model::Diagnostic::one_line).collect::<Vec<_>>().join("; "))
            }
        }
    }

    fn ready(&self) -> Result<(), String> {
        match self.pipeline.report().published {
            None => Err("no configuration yet".to_owned()),
            Some(_) => {
                self.workers.get().ok_or("the workers are not started yet")?.all_serve()?;
                self.published().workers_ready()
            }
        }
    }
}
