//! The exporter of a connection (RFC 8446, section 7.5): a value that both ends know and no other
//! connection has. rustls returns it only for connections whose records rustls itself processes.
//! For a connection whose keys are extracted, rustls passes the exporter's secret to the key log
//! alone. So the key log is ours: it keeps this secret, and passes on everything that the
//! application's key log asks for.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::crypto::tls13::OkmBlock;
use rustls::{KeyLog, Tls13CipherSuite};

use crate::identity::ChannelBinding;

/// The exporter's label, used only to bind proofs to their connection.
pub(crate) const BINDING: &[u8] = b"EXPORTER-tokio-fabric-channel-binding";

/// Label of the exporter's secret in a key log.
const EXPORTER_SECRET: &str = "EXPORTER_SECRET";

/// The secret that a connection's exporter derives from; wiped when dropped.
pub(crate) struct ExporterSecret(OkmBlock);

thread_local! {
    /// The exporter's secret that the current handshake of this thread has logged.
    static LOGGED: RefCell<Option<ExporterSecret>> = const { RefCell::new(None) };
}

/// The key log in our copies of the application's configurations. It keeps the exporter's secret,
/// and passes on each secret whose label the application's key log asks for.
#[derive(Debug)]
pub(crate) struct ExporterLog {
    application: Arc<dyn KeyLog>,
}

impl ExporterLog {
    pub(crate) fn before(application: Arc<dyn KeyLog>) -> Arc<Self> {
        Arc::new(ExporterLog { application })
    }
}

impl KeyLog for ExporterLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        if label == EXPORTER_SECRET {
            LOGGED.set(Some(ExporterSecret(OkmBlock::new(secret))));
        }
        if self.application.will_log(label) {
            self.application.log(label, client_random, secret);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == EXPORTER_SECRET || self.application.will_log(label)
    }
}

/// Runs a step of a handshake. Returns its result, and the exporter's secret if the step has logged
/// it.
pub(crate) fn catch_secret<R>(step: impl FnOnce() -> R) -> (R, Option<ExporterSecret>) {
    // A verifier of certificates may itself run another handshake on this thread.
    let of_another = LOGGED.take();
    let result = step();
    (result, LOGGED.replace(of_another))
}

impl ExporterSecret {
    /// The exporter's value with our label and no context.
    pub(crate) fn binding(&self, suite: &Tls13CipherSuite) -> ChannelBinding {
        let nothing = suite.common.hash_provider.hash(&[]);
        let expander = suite.hkdf_provider.expander_for_okm(&self.0);
        let of_label = expand(expander.hash_len(), BINDING, nothing.as_ref(), |info| {
            expander.expand_block(info)
        });
        let expander = suite.hkdf_provider.expander_for_okm(&of_label);
        let mut binding = ChannelBinding::default();
        let filled = expand(binding.len(), b"exporter", nothing.as_ref(), |info| {
            expander.expand_slice(info, &mut binding)
        });
        filled.expect("an expansion is at least as long as its hash");
        binding
    }
}

/// HKDF-Expand-Label (RFC 8446, section 7.1).
fn expand<R>(len: usize, label: &[u8], context: &[u8], with: impl FnOnce(&[&[u8]]) -> R) -> R {
    const PREFIX: &[u8] = b"tls13 ";
    let len = (len as u16).to_be_bytes();
    let label_len = [(PREFIX.len() + label.len()) as u8];
    let context_len = [context.len() as u8];
    with(&[&len, &label_len, PREFIX, label, &context_len, context])
}
