//! What a queue's thread is asked to do besides forwarding: its queue gives pages up, or gets them back.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel as mpsc_channel};
use std::time::Duration;

use netdev::Queue;
use rustix::event::{EventfdFlags, eventfd};

/// How long a thread may take until it follows an order: it may be in the middle of a batch.
const TIMEOUT: Duration = Duration::from_secs(1);

enum Order {
    SetAside(usize, Sender<Vec<u16>>),
    PutBack(Vec<u16>),
}

/// The end that asks.
pub(super) struct OrderSender {
    orders: Sender<Order>,
    event: Arc<OwnedFd>,
}

/// The end of the thread. Readable while there is an order.
pub(super) struct OrderTaker {
    orders: Receiver<Order>,
    event: Arc<OwnedFd>,
}

/// The two ends.
pub(super) fn channel() -> io::Result<(OrderSender, OrderTaker)> {
    let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, orders) = mpsc_channel();
    Ok((OrderSender { orders: sender, event: event.clone() }, OrderTaker { orders, event }))
}

impl OrderSender {
    fn send(&self, order: Order) {
        // A thread that has ended follows no orders.
        let _ = self.orders.send(order);
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// See [`Queue::set_aside`]. None if the thread has ended or does not answer.
    pub(super) fn set_aside(&self, count: usize) -> Vec<u16> {
        let (sender, pages) = mpsc_channel();
        self.send(Order::SetAside(count, sender));
        pages.recv_timeout(TIMEOUT).unwrap_or_default()
    }

    /// See [`Queue::put_back`].
    pub(super) fn put_back(&self, pages: Vec<u16>) {
        self.send(Order::PutBack(pages));
    }
}

impl OrderTaker {
    #[inline]
    pub(super) fn follow<Q: Queue>(&self, queue: &mut Q) {
        while let Ok(order) = self.orders.try_recv() {
            // It may be clear.
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
            match order {
                Order::PutBack(pages) => queue.put_back(&pages),
                Order::SetAside(count, answer) => {
                    if let Err(unheard) = answer.send(queue.set_aside(count)) {
                        queue.put_back(&unheard.0);
                    }
                }
            }
        }
    }
}

impl AsFd for OrderTaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_answer_gives_up_nothing() {
        let (sender, taker) = channel().unwrap();
        assert_eq!(sender.set_aside(3), [0u16; 0]);
        drop(taker);
        assert_eq!(sender.set_aside(3), [0u16; 0], "it has ended");
    }
}
