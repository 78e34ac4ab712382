//! Messages that are announced before they are sent: the receiver's half.

use crate::proto::matching::PostedReceive;

use super::Connection;

impl<T> Connection<T> {
    /// A receive was matched with an announcement of the peer's that was kept: asks for its bytes.
    /// `Err`: there is no such announcement any more.
    pub(crate) fn clear_to_send(
        &mut self,
        index: u8,
        receive: PostedReceive<T>,
    ) -> Result<(), PostedReceive<T>> {
        let _ = index;
        Err(receive)
    }
}
