//! Explanations as readable text.

use std::fmt;

use super::chains::StageOutcome;
use super::{Candidate, CandidateOutcome, Explanation, Stage, UpstreamSummary, printable};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = &self.request;
        match request.host.as_str() {
            // A refused request has no parsed parts.
            "" => write!(f, "{} {}", request.method, request.path)?,
            host => write!(f, "{} {}://{host}{}", request.method, request.scheme, request.path)?,
        }
        writeln!(f, ", from {}, at revision {}", request.remote_addr, self.revision)?;
        if let Some((status, why)) = &self.refused {
            writeln!(f, "\nrefused with {status}: {why}")?;
        }
        match &self.route {
            Some(route) => {
                let host = route.host.as_ref().map(|host| format!(" under {host}")).unwrap_or_default();
                writeln!(f, "\nroute      routes/{}{} by {}{host}", route.id, named(&route.name), route.uri)?;
            }
            None if self.refused.is_none() => writeln!(f, "\nroute      none")?,
            None => {}
        }
        if let Some(consumer) = &self.consumer {
            writeln!(f, "consumer   {consumer}")?;
        }
        if let Some(key) = &self.not_asked {
            writeln!(f, "answer     unknown: {key} needs a secret, and no secret manager was asked")?;
        }
        match (&self.answer, &self.upstream) {
            (Some(answer), _) => {
                let by = match &answer.by {
                    Some((plugin, from)) => format!(" by {plugin} of {from}"),
                    None => " by the gateway".to_owned(),
                };
                let body = if answer.body.is_empty() { answer.reason } else { &answer.body };
                let body = if body.is_empty() { String::new() } else { format!(": {body}") };
                match answer.status {
                    Some(status) => writeln!(f, "answer     {status}{by}{body}")?,
                    None => writeln!(f, "answer     decided at request time{by}")?,
                }
            }
            (None, Some(target)) => write_target(f, target)?,
            (None, None) => {}
        }
        if !self.candidates.is_empty() {
            writeln!(f, "\nroutes that were tried, in this order")?;
            rows(f, &self.candidates)?;
            more(f, self.more_candidates)?;
        }
        if !self.others.is_empty() {
            writeln!(f, "\nroutes that were not tried, the nearest first")?;
            rows(f, &self.others)?;
            more(f, self.more_others)?;
        }
        if !self.stages.is_empty() {
            writeln!(f, "\nplugins, in the order in which they run")?;
            let name = widest(self.stages.iter().map(|stage| stage.name));
            let from = widest(self.stages.iter().map(|stage| stage.from.as_str()));
            for stage in &self.stages {
                let (plugin, place) = (stage.name, &stage.from);
                writeln!(f, "  {plugin:name$}  {place:from$}  {}", words(stage))?;
            }
        }
        for note in &self.notes {
            writeln!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

fn write_target(f: &mut fmt::Formatter<'_>, target: &UpstreamSummary) -> fmt::Result {
    writeln!(f, "upstream   {}: {}, {}", target.from, target.scheme, target.balancer)?;
    if let Some(key) = &target.key {
        writeln!(f, "           key `{key}`")?;
    }
    writeln!(f, "request    {} {} with Host {}", target.method, target.uri, target.host)?;
    match &target.chosen {
        Some(server) => writeln!(f, "server     {server}: {}", target.why)?,
        None => writeln!(f, "server     {}", target.why)?,
    }
    let address = widest(target.servers.iter().map(|server| server.address.as_str()));
    for server in &target.servers {
        let name = server.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let tier =
            if server.priority == 0 { String::new() } else { format!(", priority {}", server.priority) };
        // Where all are, none of them is out.
        let out = if target.all_unhealthy { "" } else { "out: " };
        let failures = server.failures.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let against = server.against.map(|why| format!(", {out}{why}{failures}")).unwrap_or_default();
        let at = &server.address;
        writeln!(f, "           {at:address$}{name}  weight {}{tier}{against}", server.weight)?;
    }
    if target.more_servers > 0 {
        writeln!(f, "           and {} more", target.more_servers)?;
    }
    Ok(())
}

fn rows(f: &mut fmt::Formatter<'_>, candidates: &[Candidate]) -> fmt::Result {
    let ids: Vec<String> =
        candidates.iter().map(|one| format!("routes/{}{}", one.route, named(&one.name))).collect();
    let id = widest(ids.iter().map(String::as_str));
    let uri = widest(candidates.iter().map(|one| one.uri.as_str()));
    for (one, shown) in candidates.iter().zip(&ids) {
        let fate = match one.fate {
            CandidateOutcome::Chosen => "chosen: ".to_owned(),
            CandidateOutcome::Later => "matches, but ".to_owned(),
            CandidateOutcome::Undecided => "undecided: ".to_owned(),
            CandidateOutcome::Failed(condition) => format!("no, {condition}: "),
        };
        let path = &one.uri;
        writeln!(f, "  {shown:id$}  {path:uri$}  {fate}{}", one.why)?;
    }
    Ok(())
}

fn more(f: &mut fmt::Formatter<'_>, more: usize) -> fmt::Result {
    if more > 0 { writeln!(f, "  and {more} more") } else { Ok(()) }
}

fn words(stage: &Stage) -> String {
    match &stage.ran {
        StageOutcome::Passes => "lets it pass".to_owned(),
        StageOutcome::Answers(status) => format!("answers {status}"),
        StageOutcome::Refuses(why) => format!("refuses with {}: {}", why.status(), why.as_str()),
        StageOutcome::Undecided => "decides at request time".to_owned(),
        StageOutcome::Filtered => "does not run: its _meta.filter does not hold".to_owned(),
        StageOutcome::NotReached => "is not reached".to_owned(),
        StageOutcome::Later => format!("works on the response ({})", stage.phases.join(", ")),
    }
}

fn named(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" \"{}\"", printable(name)) }
}

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    // One long text must not push all others to the right.
    texts.map(|text| text.chars().count()).max().unwrap_or_default().min(40)
}
