//! Models and policies, compiled.
//!
//! A matcher becomes one for each line of the policy, with the fields of the line as constants: patterns are compiled
//! and comparisons of constants decided before any request.

use std::cell::RefCell;

use ::model::Invalid;
use hashbrown::{Equivalent, HashMap, HashSet};
use sdk::pattern::{Searches, StepLimit};

use super::matcher::{Matcher, Operand, Scope};
use super::parse;

/// A model and its policy, ready to decide.
#[derive(Debug)]
pub(super) struct Enforcer {
    effect: Effect,
    lines: Vec<Line>,
    graphs: Vec<Graph>,
    /// See [`Enforcer::work`].
    work: usize,
}

#[derive(Debug)]
struct Line {
    matcher: Matcher,
    effect: LineEffect,
}

/// The effect of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEffect {
    Allow,
    Deny,
}

/// How the effects of the lines that match become a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    SomeAllow,
    NoDeny,
    SomeAllowNoDeny,
    /// The first line that allows or denies.
    Priority,
}

/// Roles: for a name, in a domain, the roles that it has directly.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub name: String,
    pub has_domain: bool,
    /// By domain and by name.
    links: HashMap<Text, HashMap<Text, Vec<Text>>>,
}

type Text = Box<[u8]>;

/// A graph, a name and a domain.
#[derive(PartialEq, Eq, Hash)]
struct Asked(usize, Text, Text);

/// The same, borrowed.
#[derive(Hash)]
struct AskedRef<'a>(usize, &'a [u8], &'a [u8]);

impl Equivalent<Asked> for AskedRef<'_> {
    fn equivalent(&self, own: &Asked) -> bool {
        (self.0, self.1, self.2) == (own.0, &*own.1, &*own.2)
    }
}

/// How far roles inherit roles, as in Casbin.
const LEVELS: usize = 10;

/// Lines that a policy may have.
const LINES: usize = 100_000;

/// The values of a request, and the roles that were looked up for it.
pub(super) struct Request<'r> {
    pub values: [&'r [u8]; 3],
    pub searches: &'r Searches,
    graphs: &'r [Graph],
    roles: RefCell<HashMap<Asked, HashSet<&'r [u8]>>>,
}

impl Enforcer {
    /// # Errors
    /// The model or the policy is invalid, with its pointer.
    pub fn compile(model: &str, policy: &str) -> Result<Enforcer, Invalid> {
        let model = parse::model(model).map_err(|why| Invalid::new(why).at("/model"))?;
        let of_policy = |line: usize, why: &str| Invalid::new(format!("line {line}: {why}")).at("/policy");
        let effect = Effect::named(&model.effect).ok_or_else(|| {
            let known = "some(where (p.eft == allow)), !some(where (p.eft == deny)), both with &&, or priority(p.eft) || deny";
            Invalid::new("unknown policy_effect").at("/model").got(model.effect.as_str()).expected(known)
        })?;
        let mut graphs: Vec<Graph> = Vec::new();
        for (name, fields) in &model.roles {
            let has_domain = match fields {
                2 => false,
                3 => true,
                _ => return Err(Invalid::new(format!("role {name} must have 2 or 3 fields")).at("/model")),
            };
            graphs.push(Graph { name: name.clone(), has_domain, ..Graph::default() });
        }
        let mut lines = Vec::new();
        let eft = model.policy.iter().position(|field| field == "eft");
        for (number, fields) in parse::policy(policy) {
            if number > LINES {
                return Err(of_policy(number, "the policy is too long"));
            }
            let fields = fields.map_err(|why| of_policy(number, why))?;
            let (kind, values) = fields.split_first().ok_or_else(|| of_policy(number, "it is empty"))?;
            if let Some(graph) = graphs.iter_mut().find(|graph| graph.name == *kind) {
                graph.add(values).map_err(|why| of_policy(number, why))?;
            } else if kind == "p" {
                // An effect may be left out at the end.
                let all = model.policy.len();
                let is_short = eft == Some(all - 1) && values.len() == all - 1;
                if values.len() != all && !is_short {
                    return Err(of_policy(number, "it does not have the fields of policy_definition"));
                }
                lines.push((number, values.to_vec()));
            } else {
                return Err(of_policy(number, "it begins with no name of the model"));
            }
        }
        let expression = parse::expression(&model.matcher)
            .map_err(|why| Invalid::new(format!("matcher: {why}")).at("/model"))?;
        let compile = |(number, values): (usize, Vec<String>)| {
            let effect = match eft.and_then(|at| values.get(at)).map(String::as_str) {
                None | Some("allow") => LineEffect::Allow,
                Some("deny") => LineEffect::Deny,
                Some(_) => return Err(of_policy(number, "its effect must be allow or deny")),
            };
            let scope =
                Scope { request: &model.request, policy: &model.policy, values: &values, graphs: &graphs };
            let matcher = Matcher::compile(&expression, &scope).map_err(|why| of_policy(number, &why))?;
            Ok(Line { matcher, effect })
        };
        // A mistake in the matcher is found without any line.
        let blank = vec![String::new(); model.policy.len()];
        let scope = Scope { request: &model.request, policy: &model.policy, values: &blank, graphs: &graphs };
        Matcher::compile(&expression, &scope)
            .map_err(|why| Invalid::new(format!("matcher: {why}")).at("/model"))?;
        let mut lines: Vec<Line> = lines.into_iter().map(compile).collect::<Result<_, Invalid>>()?;
        lines.retain(|line| !line.matcher.is_never());
        let work = lines.len() + links(&lines, &graphs);
        Ok(Enforcer { effect, lines, graphs, work })
    }

    /// Lines that are compared with a request, and links between roles that are followed for it.
    pub fn work(&self) -> usize {
        self.work
    }

    /// Whether the policy accepts a request with this subject, object and action.
    ///
    /// # Errors
    /// It is undecided.
    pub fn accepts(&self, values: [&[u8]; 3], searches: &Searches) -> Result<bool, StepLimit> {
        let request = Request { values, searches, graphs: &self.graphs, roles: RefCell::default() };
        let mut allows = false;
        for line in &self.lines {
            // A line that could not change the decision is not compared.
            let is_known = match (self.effect, line.effect) {
                (Effect::SomeAllow, LineEffect::Deny) | (Effect::NoDeny, LineEffect::Allow) => true,
                (Effect::SomeAllowNoDeny, LineEffect::Allow) => allows,
                _ => false,
            };
            if is_known || !line.matcher.holds(&request)? {
                continue;
            }
            match (self.effect, line.effect) {
                (Effect::SomeAllow, _) => return Ok(true),
                (Effect::NoDeny, _) | (Effect::SomeAllowNoDeny, LineEffect::Deny) => return Ok(false),
                (Effect::Priority, effect) => return Ok(effect == LineEffect::Allow),
                (Effect::SomeAllowNoDeny, _) => allows = true,
            }
        }
        Ok(allows || self.effect == Effect::NoDeny)
    }
}

impl Effect {
    fn named(text: &str) -> Option<Effect> {
        let bare: String = text.split_whitespace().collect();
        Some(match &bare[..] {
            "some(where(p.eft==allow))" => Effect::SomeAllow,
            "!some(where(p.eft==deny))" => Effect::NoDeny,
            "some(where(p.eft==allow))&&!some(where(p.eft==deny))" => Effect::SomeAllowNoDeny,
            "priority(p.eft)||deny" => Effect::Priority,
            _ => return None,
        })
    }
}

impl Graph {
    fn add(&mut self, values: &[String]) -> Result<(), &'static str> {
        let boxed = |text: &String| Box::from(text.as_bytes());
        let (name, role, domain) = match values {
            [name, role] if !self.has_domain => (boxed(name), boxed(role), Box::default()),
            [name, role, domain] if self.has_domain => (boxed(name), boxed(role), boxed(domain)),
            _ => return Err("it does not have the fields of role_definition"),
        };
        self.links.entry(domain).or_default().entry(name).or_default().push(role);
        Ok(())
    }

    /// The most links that are followed for a name in this domain, or in any: its own, and those of names that are roles.
    fn work(&self, domain: Option<&[u8]>) -> usize {
        let of_domain = |names: &HashMap<Text, Vec<Text>>| {
            let roles: HashSet<&Text> = names.values().flatten().collect();
            let of_roles = names.iter().filter(|(name, _)| roles.contains(name));
            let own = names.values().map(Vec::len).max().unwrap_or(0);
            own + of_roles.map(|(_, links)| links.len()).sum::<usize>()
        };
        match domain {
            Some(domain) => self.links.get(domain).map_or(0, of_domain),
            None => self.links.values().map(of_domain).max().unwrap_or(0),
        }
    }

    /// All roles of a name.
    fn roles<'g>(&'g self, name: &[u8], domain: &[u8]) -> HashSet<&'g [u8]> {
        let mut found = HashSet::new();
        let names = self.links.get(domain);
        let links = |name: &[u8]| names.and_then(|names| names.get(name));
        let mut level: Vec<&[u8]> = links(name).into_iter().flatten().map(|role| &**role).collect();
        for _ in 0..LEVELS {
            level.retain(|role| found.insert(*role));
            level = level.iter().filter_map(|role| links(role)).flatten().map(|role| &**role).collect();
        }
        found
    }
}

/// The most links that are followed for a request: the roles of a name in a domain are looked up once.
fn links(lines: &[Line], graphs: &[Graph]) -> usize {
    let mut asked = HashSet::new();
    for line in lines {
        line.matcher.roles(&mut |graph, name, domain| _ = asked.insert((graph, name, domain)));
    }
    let mut known = HashMap::new();
    let mut all = 0;
    for (graph, _, domain) in asked {
        let work = || graphs[graph].work(domain.map_or(Some(b""), Operand::constant));
        all += *known.entry((graph, domain)).or_insert_with(work);
    }
    all
}

impl Request<'_> {
    /// Whether a name is or has a role.
    pub fn has_role(&self, graph: usize, name: &[u8], role: &[u8], domain: &[u8]) -> bool {
        if name == role {
            return true;
        }
        if let Some(found) = self.roles.borrow().get(&AskedRef(graph, name, domain)) {
            return found.contains(role);
        }
        let found = self.graphs[graph].roles(name, domain);
        let has_role = found.contains(role);
        self.roles.borrow_mut().insert(Asked(graph, name.into(), domain.into()), found);
        has_role
    }
}
