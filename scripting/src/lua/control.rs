//! The machine of the control side: it compiles sources and runs their checks, on a thread of its own.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use model::Invalid;

use super::host::Host;
use super::machine::{self, Machine};
use super::text;

type Job = Box<dyn FnOnce(&Arc<Host>) + Send>;

/// Jobs with the host whose machine runs them.
type Jobs = Sender<(Arc<Host>, Job)>;

/// Runs a job with the control machine, and waits for its result.
///
/// # Errors
/// The machine cannot be made.
pub(super) fn run<T: Send + 'static>(
    host: &Arc<Host>,
    job: impl FnOnce(&Machine) -> T + Send + 'static,
) -> Result<T, Invalid> {
    static JOBS: OnceLock<Option<Jobs>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let (sender, jobs) = channel::<(Arc<Host>, Job)>();
        let started = std::thread::Builder::new().name("lua-control".into()).spawn(move || {
            for (host, job) in jobs {
                job(&host);
            }
        });
        started.ok().map(|_| sender)
    });
    let (answer, answered) = channel();
    let job: Job = Box::new(move |host| {
        let done = machine::of_thread(host)
            .map(|machine| {
                machine.make_room();
                machine.run(|| job(&machine))
            })
            .map_err(|error| text::message(&error));
        let _ = answer.send(done);
    });
    let sent = jobs.as_ref().is_some_and(|jobs| jobs.send((host.clone(), job)).is_ok());
    let done = match sent {
        true => answered.recv().unwrap_or_else(|_| Err("the check of the script failed".to_owned())),
        false => Err("the thread for checks of scripts cannot be started".to_owned()),
    };
    done.map_err(Invalid::new)
}
