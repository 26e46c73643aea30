//! The CPUs of server and client. The papers' clients are on other machines.

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Result;

/// The CPUs of the server and of the client.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Cpus {
    /// The CPU of the server's guests, and of the driver domain unless the two are [apart](Self::apart). Any CPU if
    /// there is only one.
    #[serde(rename = "server_cpu")]
    pub server: Option<usize>,
    /// The driver domain's CPU.
    #[serde(skip)]
    pub driver: Option<usize>,
    /// The client's CPU; any if there is only one.
    #[serde(rename = "client_cpu")]
    pub client: Option<usize>,
    /// What differs from the intended setup.
    #[serde(skip)]
    pub note: Option<String>,
}

impl Cpus {
    /// Chooses two of the CPUs that this program may use.
    pub fn choose() -> Result<Self> {
        Ok(Self::among(&lab::cpus()?, lab::share_a_core))
    }

    /// Any CPUs, if the time of the domains need not be told apart.
    pub fn any() -> Self {
        Self { server: None, driver: None, client: None, note: None }
    }

    /// Chooses among `all`. The client gets the first CPU, which serves most of the machine's interrupts.
    fn among(all: &[usize], share_a_core: impl Fn(usize, usize) -> bool) -> Self {
        let (client, others) = match all {
            [client, others @ ..] if !others.is_empty() => (*client, others),
            _ => {
                let note = "server and client share one CPU, so the client's work counts too";
                let note = Some(note.to_owned());
                return Self { server: None, driver: None, client: None, note };
            }
        };
        let apart = others.iter().find(|cpu| !share_a_core(client, **cpu));
        let note = apart.is_none().then(|| {
            "the server's CPU and the client's are threads of one core: they slow each other down"
                .to_owned()
        });
        let server = apart.or(others.first()).copied();
        Self { server, driver: server, client: Some(client), note }
    }

    /// The same with the driver domain apart from its guests: on the client's CPU, because a machine with two CPUs has no
    /// third.
    pub fn apart(&self) -> Self {
        Self { driver: self.client, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(all: &[usize], cores: usize) -> (Option<usize>, Option<usize>, bool) {
        let cpus = Cpus::among(all, |one, other| one % cores == other % cores);
        (cpus.server, cpus.client, cpus.note.is_some())
    }

    #[test]
    fn server_and_client_get_separate_cores_if_there_are_two() {
        assert_eq!(chosen(&[0, 1], 2), (Some(1), Some(0), false));
        assert_eq!(chosen(&[2, 4, 5], 2), (Some(5), Some(2), false));
        assert_eq!(chosen(&[0, 1], 1), (Some(1), Some(0), true));
        assert_eq!(chosen(&[3], 1), (None, None, true));
        let together = Cpus::among(&[0, 1], |_, _| false);
        let apart = together.apart();
        assert_eq!((together.driver, apart.driver, apart.server), (Some(1), Some(0), Some(1)));
    }
}
