//! How far calls are when a side dies.

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Server,
    Client,
}

impl Role {
    pub const ALL: [Role; 2] = [Role::Server, Role::Client];

    pub fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// One call runs, and fills the window; the others wait for it.
    Queued,
    /// Requests have gone out. A server that dies has read none of them.
    Sent,
    Running,
    Pulling,
    Pushing,
    /// Bodies by reference go there and back, over and over.
    Fetching,
    /// Items go both ways.
    Streaming,
    /// Answers go out, one behind the other.
    Answering,
    /// All have been answered; the next calls come at the moment of death.
    Answered,
    /// Half of what runs has just been cancelled.
    Cancelling,
    /// The server drains, and its calls run.
    Draining,
}

impl Step {
    pub const ALL: [Step; 11] = [
        Step::Queued,
        Step::Sent,
        Step::Running,
        Step::Pulling,
        Step::Pushing,
        Step::Fetching,
        Step::Streaming,
        Step::Answering,
        Step::Answered,
        Step::Cancelling,
        Step::Draining,
    ];

    pub fn named(name: &str) -> Step {
        let same = |step: &Step| format!("{step:?}") == name;
        Step::ALL.into_iter().find(same).expect("a step's name")
    }

    /// As the page calls it.
    pub fn about(self) -> &'static str {
        match self {
            Step::Queued => "requests wait for the window",
            Step::Sent => "requests sent",
            Step::Running => "handlers run",
            Step::Pulling => "lent memory is read",
            Step::Pushing => "lent memory is written",
            Step::Fetching => "large bodies are read",
            Step::Streaming => "items go both ways",
            Step::Answering => "answers go out",
            Step::Answered => "all answered, next calls begin",
            Step::Cancelling => "half of the calls cancelled",
            Step::Draining => "server drains",
        }
    }

    /// Bytes move: deaths come at another moment each time.
    pub fn is_moving(self) -> bool {
        use Step::{Answering, Fetching, Pulling, Pushing, Streaming};
        matches!(self, Pulling | Pushing | Fetching | Streaming | Answering)
    }

    /// The server's window.
    pub fn window(self) -> u32 {
        match self {
            Step::Queued => 1,
            _ => 256,
        }
    }
}
