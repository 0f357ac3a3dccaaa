//! Runs the checker and says what it found.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use stateright::{
    Checker, Expectation, HasDiscoveries, Model,
    report::{ReportData, ReportDiscovery, Reporter},
};

use crate::{
    protocol::{Action, Protocol},
    state::State,
};

/// How often a long exploration says how far it is.
const PROGRESS: Duration = Duration::from_secs(5);

/// What an exploration came to.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Scope and mutant.
    pub name: String,
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// Longest of the shortest paths to a state.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// A property of the promise that does not hold, if there is one.
    pub broken: Option<Broken>,
    /// Situations that were not come to.
    pub missed: Vec<&'static str>,
}

/// How the promise breaks.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Which property.
    pub property: &'static str,
    /// The steps to there, as few as possible.
    pub path: Vec<Action>,
    /// Where they lead.
    pub state: Box<State>,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            states,
            steps,
            depth,
            ..
        } = self;
        let seconds = self.took.as_secs_f64();
        write!(
            f,
            "model {name}: {states} states, {steps} steps, depth {depth}, {seconds:.1} s: "
        )?;
        match &self.broken {
            None => f.write_str("the promise holds"),
            Some(broken) => write!(f, "broken: {broken}"),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {} steps", self.property, self.path.len())?;
        for (number, action) in self.path.iter().enumerate() {
            write!(f, "\n  {:2}. {action:?}", number + 1)?;
        }
        Ok(())
    }
}

/// Looks at every state that can be reached, or until the promise breaks, and prints what it came to.
pub fn explore(protocol: Protocol) -> Explored {
    let mut explored = search(&protocol, None);
    // The checker ends some states after its find and keeps the last one it met: that may be a step too long.
    while let Some(broken) = &explored.broken {
        let shorter = search(&protocol, Some(broken.path.len())).broken;
        if shorter.is_none() {
            break;
        }
        explored.broken = shorter;
    }
    println!("{explored}");
    explored
}

/// Breadth first, in one thread; `below`: only paths of fewer steps.
fn search(protocol: &Protocol, below: Option<usize>) -> Explored {
    let mut name = protocol.scope().name.to_owned();
    if let Some(mutant) = protocol.mutant() {
        name = format!("{name} with {mutant}");
    }
    let began = Instant::now();
    let mut progress = Progress {
        name: name.clone(),
        said: Duration::ZERO,
    };
    // A path of n steps has n + 1 states, and the checker stops before the one of this number.
    let checker = protocol
        .clone()
        .checker()
        .target_max_depth(below.map_or(0, |steps| steps + 1))
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join_and_report(&mut progress);
    let mut discoveries = checker.discoveries();
    let (mut broken, mut missed) = (None::<Broken>, Vec::new());
    for property in checker.model().properties() {
        let found = discoveries.remove(property.name);
        if property.expectation == Expectation::Sometimes {
            if found.is_none() {
                missed.push(property.name);
            }
        } else if let Some(path) = found {
            let state = Box::new(*path.last_state());
            let path = path.into_actions();
            if broken.as_ref().is_none_or(|broken| path.len() < broken.path.len()) {
                let property = property.name;
                broken = Some(Broken { property, path, state });
            }
        }
    }
    Explored {
        name,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        broken,
        missed,
    }
}

struct Progress {
    name: String,
    said: Duration,
}

impl Reporter<Protocol> for Progress {
    fn report_checking(&mut self, data: ReportData) {
        if !data.done && data.duration >= self.said + PROGRESS {
            self.said = data.duration;
            println!(
                "model {}: {} states so far, depth {}",
                self.name, data.unique_states, data.max_depth
            );
        }
    }

    fn report_discoveries(&mut self, _: &Protocol, _: BTreeMap<&'static str, ReportDiscovery<Protocol>>) {}

    /// The checker's end is looked for this often.
    fn delay(&self) -> Duration {
        Duration::from_millis(50)
    }
}
