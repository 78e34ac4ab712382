//! Waiters that drive, in every order of waiting, being woken, ending and going away.

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::sync::Mutex;
use crate::sync::model::Model;

pub(crate) const MODELS: &[Model] = &[
    Model::of(
        "manual progress: of two who wait each gets its message, by either",
        handed_over,
    )
    .bounded(2),
    Model::of(
        "manual progress: who is asked and goes away leaves none without a driver",
        dropped,
    )
    .bounded(3),
    Model::of(
        "manual progress: what comes during a turn is found by the next",
        asked_for,
    )
    .bounded(3),
    Model::of(
        "manual progress: who is asked and does not answer is passed over",
        passed_over,
    )
    .bounded(3),
];

/// Messages, as on a socket, and the waker to wake when one comes.
#[derive(Default)]
struct Wire {
    state: Mutex<WireState>,
}

#[derive(Default)]
struct WireState {
    arrived: [bool; 2],
    driver: Option<Waker>,
}

impl Wire {
    fn deliver(&self, message: usize) {
        let driver = {
            let mut state = self.state.lock().unwrap();
            state.arrived[message] = true;
            state.driver.take()
        };
        wake(driver);
    }
}

/// A message, and the waker of the task that waits for it.
#[derive(Default)]
struct Mailbox(Mutex<(bool, Option<Waker>)>);

impl Mailbox {
    fn fill(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = true;
            state.1.take()
        };
        wake(waker);
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Carries messages from the wire to the mailboxes, when it is polled.
struct Carrier {
    wire: Arc<Wire>,
    mailboxes: Arc<[Mailbox; 2]>,
}

impl Future for Carrier {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let arrived = {
            let mut state = self.wire.state.lock().unwrap();
            state.driver = Some(cx.waker().clone());
            std::mem::take(&mut state.arrived)
        };
        for (mailbox, arrived) in self.mailboxes.iter().zip(arrived) {
            if arrived {
                mailbox.fill();
            }
        }
        Poll::Pending
    }
}

impl ProgressTask for Carrier {
    fn is_due(&mut self) -> bool {
        false
    }

    fn has_moved(&mut self) -> bool {
        false
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Gives a waiter that is asked unlimited time to answer.
struct Patient;

impl ReadinessSource for Patient {}

/// Gives a waiter no time to answer.
struct Impatient;

impl ReadinessSource for Impatient {
    fn set_alarm(&self, alarm: &Waker) {
        alarm.wake_by_ref();
    }
}

/// The waker of a task that does not poll its waiter again.
struct Unanswered;

impl Wake for Unanswered {
    fn wake(self: Arc<Self>) {}
}

struct Scene {
    wire: Arc<Wire>,
    mailboxes: Arc<[Mailbox; 2]>,
    progress: Arc<ManualProgress>,
}

impl Scene {
    fn new(readiness: impl ReadinessSource + 'static) -> Self {
        let scene = Scene {
            wire: Arc::default(),
            mailboxes: Arc::default(),
            progress: ManualProgress::new(Box::new(readiness)),
        };
        scene.progress.add(Box::new(Carrier {
            wire: Arc::clone(&scene.wire),
            mailboxes: Arc::clone(&scene.mailboxes),
        }));
        scene
    }

    /// Waits for a message until it comes.
    fn wait(&self, message: usize) -> impl FnOnce() + use<> {
        let (progress, mailboxes) = (Arc::clone(&self.progress), Arc::clone(&self.mailboxes));
        move || {
            let message = std::future::poll_fn(|cx| mailboxes[message].poll(cx));
            block_on(await_driving(Some(&progress), message));
        }
    }
}

fn handed_over() {
    let scene = Scene::new(Patient);
    let other = thread::spawn(scene.wait(1));
    let wire = Arc::clone(&scene.wire);
    let delivers = thread::spawn(move || {
        wire.deliver(0);
        wire.deliver(1);
    });
    scene.wait(0)();
    other.join().unwrap();
    delivers.join().unwrap();
}

fn dropped() {
    let scene = Scene::new(Patient);
    let wire = Arc::clone(&scene.wire);
    let delivers = thread::spawn(move || wire.deliver(0));
    let waits = thread::spawn(scene.wait(0));
    // Polled once, as a branch of a `select!` that another one ends.
    let mut waiter = ProgressWaiter::new(Some(&scene.progress));
    let mailboxes = Arc::clone(&scene.mailboxes);
    let waker = Waker::from(Arc::new(Unanswered));
    let mut cx = Context::from_waker(&waker);
    let polled = waiter.poll(&mut cx, |cx| mailboxes[1].poll(cx));
    assert!(polled.is_pending());
    drop(waiter);
    waits.join().unwrap();
    delivers.join().unwrap();
}

fn asked_for() {
    let scene = Scene::new(Patient);
    let wire = Arc::clone(&scene.wire);
    let delivers = thread::spawn(move || wire.deliver(0));
    let progress = Arc::clone(&scene.progress);
    let turns = thread::spawn(move || progress.turn());
    scene.wait(0)();
    turns.join().unwrap();
    delivers.join().unwrap();
}

fn passed_over() {
    let scene = Scene::new(Impatient);
    let wire = Arc::clone(&scene.wire);
    let delivers = thread::spawn(move || wire.deliver(0));
    let waits = thread::spawn(scene.wait(0));
    // Polled once, and kept by a task that waits for something else.
    let mut waiter = ProgressWaiter::new(Some(&scene.progress));
    let mailboxes = Arc::clone(&scene.mailboxes);
    let waker = Waker::from(Arc::new(Unanswered));
    let mut cx = Context::from_waker(&waker);
    let polled = waiter.poll(&mut cx, |cx| mailboxes[1].poll(cx));
    assert!(polled.is_pending());
    waits.join().unwrap();
    delivers.join().unwrap();
    drop(waiter);
}
