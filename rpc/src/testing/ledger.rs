//! Counts that must balance when all calls have ended.

use std::fmt;
use std::sync::{Arc, Weak};

use tokio::time::{Instant, sleep};

use crate::client::Channel;
use crate::drive::Hub;
use crate::limits::{LEDGER_PAUSE, LEDGER_WAIT};
use crate::observe::{ChannelStats, MethodStats};
use crate::server::{Listening, ServerConnection, ServerShared};

/// Checks the calls between a server and its channels: each call ends once at each side, at most
/// one handler starts for it, and all memory that was lent or used for transfers is returned.
///
/// ```
/// use tokio_fabric_rpc::{Cx, Result, service, testing};
///
/// #[service]
/// trait Double {
///     async fn double(&self, cx: &Cx, number: u32) -> Result<u32>;
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let mock = DoubleMock::new();
/// mock.on_double(|number| async move { Ok(2 * number) });
/// let (channel, server) = testing::pair(DoubleServer::new(mock)).await?;
/// let ledger = testing::Ledger::open(&server, [&channel]);
/// assert_eq!(DoubleClient::over(channel).double(21).await?, 42);
/// ledger.close().await;
/// # Ok(()) }
/// ```
#[must_use = "it is checked when it is closed"]
pub struct Ledger {
    server: Arc<ServerShared>,
    hub: Weak<Hub<ServerConnection>>,
    channels: Vec<Channel>,
    /// Number of registered regions when the ledger was opened.
    regions: Vec<usize>,
    /// Counts when the ledger was opened, since other channels may have called before.
    before: Sums,
}

/// The counts that are compared.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    clients: ChannelStats,
    server: MethodStats,
}

impl Ledger {
    /// Starts counting the calls of these channels. No other channel may call the server meanwhile.
    pub fn open<'a>(server: &Listening, channels: impl IntoIterator<Item = &'a Channel>) -> Ledger {
        let mut ledger = Ledger {
            server: Arc::clone(server.shared()),
            hub: Arc::downgrade(server.hub()),
            channels: channels.into_iter().cloned().collect(),
            regions: Vec::new(),
            before: Sums::default(),
        };
        ledger.regions = ledger.regions();
        ledger.before = ledger.sums();
        ledger
    }

    /// Waits until all calls have ended, and checks the counts.
    ///
    /// # Panics
    /// If the counts do not balance within 30 s.
    pub async fn close(self) {
        let until = Instant::now() + LEDGER_WAIT;
        loop {
            let wrong = self.differences();
            if wrong.is_empty() {
                return;
            }
            let is_late = Instant::now() >= until;
            assert!(!is_late, "the accounts are not even: {wrong:#?}\n{self:?}");
            sleep(LEDGER_PAUSE).await;
        }
    }

    fn regions(&self) -> Vec<usize> {
        let of_clients = self.channels.iter().map(|it| it.domain().region_count());
        let of_server = self.hub.upgrade().map(|it| it.domain.region_count());
        of_clients.chain(of_server).collect()
    }

    fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for channel in &self.channels {
            let (sum, one) = (&mut sums.clients, channel.stats());
            sum.begun += one.begun;
            sum.succeeded += one.succeeded;
            sum.failed += one.failed;
            sum.not_started += one.not_started;
            sum.dropped += one.dropped;
        }
        for routed in self.server.routes.all() {
            let (sum, one) = (&mut sums.server, routed.counters.snapshot());
            sum.started += one.started;
            sum.succeeded += one.succeeded;
            sum.failed += one.failed;
            sum.cancelled += one.cancelled;
            sum.refused += one.refused;
        }
        sums
    }

    fn differences(&self) -> Vec<String> {
        let Sums { clients, server } = self.sums();
        let before = self.before;
        let mut wrong = Vec::new();
        let mut expect = |holds: bool, what: String| {
            if !holds {
                wrong.push(what);
            }
        };
        let ended = clients.succeeded + clients.failed + clients.not_started + clients.dropped;
        expect(
            clients.begun == ended,
            format!("{} calls were begun and {ended} ended", clients.begun),
        );
        let ended = server.succeeded + server.failed + server.cancelled;
        expect(
            server.started == ended,
            format!("{} handlers were started and {ended} ended", server.started),
        );
        let begun = clients.begun - before.clients.begun;
        let handled = server.started + server.refused;
        let handled = handled - before.server.started - before.server.refused;
        expect(
            handled <= begun,
            format!("{begun} calls were begun and {handled} came"),
        );
        let results = clients.succeeded - before.clients.succeeded;
        // A handler that finished before its cancellation took effect has returned a result too.
        let given = server.succeeded + server.cancelled;
        let given = given - before.server.succeeded - before.server.cancelled;
        expect(
            results <= given,
            format!("{results} results were had and {given} given"),
        );
        for channel in &self.channels {
            let open = channel.open_calls();
            expect(open == 0, format!("{open} calls are open"));
        }
        let running = self.server.running();
        expect(running == 0, format!("{running} handlers run"));
        let taken = self.server.chunks.taken();
        expect(taken == 0, format!("{taken} chunks are not back"));
        let (then, now) = (&self.regions, self.regions());
        // A server that has ended has no regions.
        let even = then.iter().zip(&now).all(|(then, now)| now <= then);
        expect(even, format!("regions: {now:?}, before {then:?}"));
        wrong
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("sums", &self.sums())
            .field("before", &self.before)
            .field("regions", &self.regions)
            .finish_non_exhaustive()
    }
}
