//! A headless Chromium that a test drives: it reads pages, presses keys, and prefers light or dark colours.

use std::path::Path;
use std::time::{Duration, Instant};

use host::{Error, Process, Result, TempDir, command};
use serde_json::{Value, json};

/// The program's names: two in Debian, two elsewhere.
const NAMES: [&str; 4] =
    ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
/// The limit for each answer and each [wait](Browser::wait): far more than a busy machine needs.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A browser with one page. Dropping it ends the browser.
///
/// The DevTools protocol drives it over two pipes, so that it listens at no port. Each message ends with a zero byte.
pub struct Browser {
    process: Process,
    session: Option<String>,
    /// The number of the last call.
    calls: u64,
    /// How many bytes of its output have been read.
    read: usize,
    /// The page's errors that it has reported.
    faults: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Opens a page in the first browser that is installed.
    ///
    /// # Errors
    /// [`Error::MissingTool`] if there is none.
    pub fn open(url: &str) -> Result<Self> {
        let missing = || Error::MissingTool { tool: "chromium-headless-shell".to_owned() };
        let program = NAMES.iter().find(|name| command(name).is_ok()).ok_or_else(missing)?;
        let profile = TempDir::new()?;
        let mut shell = command("sh")?;
        // The protocol's descriptors are 3 and 4.
        shell.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null", program]);
        // Chromium's sandbox refuses root, and a container's /dev/shm may be too small.
        shell.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        shell.args(["--remote-debugging-pipe", "--lang=en-GB"]);
        shell.arg(user_data(profile.path()));
        let process = Process::interactive(shell)?;
        let (session, calls, read, faults) = (None, 0, 0, Vec::new());
        let mut browser = Self { process, session, calls, read, faults, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", &attach)?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Log.enable", "Runtime.enable", "Page.enable"] {
            browser.call(domain, &json!({}))?;
        }
        browser.call("Page.navigate", &json!({"url": url}))?;
        Ok(browser)
    }

    /// Calls a method of the protocol, and returns its result.
    fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        // The line feed, which begins the next message, is white space to JSON.
        self.process.write_line(&format!("{message}\0"))?;
        let begun = Instant::now();
        loop {
            for message in self.messages()? {
                if message["id"] == self.calls {
                    let error = &message["error"];
                    return if error.is_null() {
                        Ok(message["result"].clone())
                    } else {
                        Err(Error::parse(method, error))
                    };
                }
                self.note(&message);
            }
            self.pause(method, begun)?;
        }
    }

    /// The messages that have arrived since the last call.
    fn messages(&mut self) -> Result<Vec<Value>> {
        let output = self.process.stdout();
        let new = output.get(self.read..).unwrap_or_default();
        let whole = new.rfind('\0').map_or(0, |end| end + 1);
        self.read += whole;
        let messages = new[..whole].split_terminator('\0').map(serde_json::from_str);
        messages
            .collect::<serde_json::Result<_>>()
            .map_err(|error| Error::parse("Chromium", &error))
    }

    /// Keeps a message that the browser's console would show as an error.
    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.faults.push(params.to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.faults.push(params["entry"].to_string());
            }
            _ => {}
        }
    }

    fn pause(&mut self, what: &str, begun: Instant) -> Result<()> {
        if begun.elapsed() > LIMIT {
            let what = format!("{what} in Chromium ({})", self.process.stderr().trim());
            return Err(Error::TimedOut { what, limit: LIMIT });
        }
        std::thread::sleep(POLL);
        Ok(())
    }

    /// Evaluates an expression of JavaScript in the page. A promise is awaited.
    ///
    /// # Errors
    /// [`Error::Parse`] if it throws.
    pub fn value(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &params)?;
        match &answer["exceptionDetails"] {
            Value::Null => Ok(answer["result"]["value"].clone()),
            thrown => Err(Error::parse(expression, thrown)),
        }
    }

    /// Waits until an expression is true.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after a minute, with the text of the page.
    pub fn wait(&mut self, expression: &str) -> Result<()> {
        let begun = Instant::now();
        while self.value(expression)? != Value::Bool(true) {
            if begun.elapsed() > LIMIT {
                let text = self.value("document.body.innerText")?;
                return Err(Error::TimedOut {
                    what: format!("{expression}: {text}"),
                    limit: LIMIT,
                });
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Presses and releases a key: `Tab`, `Enter`, `ArrowRight`, or a space.
    ///
    /// # Errors
    /// It is another key, or the browser has ended.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let (code, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            " " => (32, Some(" ")),
            "ArrowRight" => (39, None),
            other => return Err(Error::parse("a key", other)),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": if key == " " { "Space" } else { key }, "windowsVirtualKeyCode": code});
            if let (Some(text), "keyDown") = (text, kind) {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", &event)?;
        }
        Ok(())
    }

    /// Sets the colour scheme that the page's user prefers: `light` or `dark`.
    ///
    /// # Errors
    /// The browser has ended.
    pub fn prefer(&mut self, scheme: &str) -> Result<()> {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.call("Emulation.setEmulatedMedia", &json!({"features": [feature]})).map(drop)
    }

    /// Sets the size of its window in pixels.
    ///
    /// # Errors
    /// The browser has ended.
    pub fn resize(&mut self, width: u32, height: u32) -> Result<()> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size).map(drop)
    }

    /// The errors that the page has caused so far: exceptions, refused scripts and styles, files that did not load.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.faults
    }
}

impl Drop for Browser {
    /// Asks the browser to close. Debian's program is a shell script; to end the script alone would leave the browser running for a while.
    fn drop(&mut self) {
        self.session = None;
        // An error means that it has ended already.
        let _ = self.call("Browser.close", &json!({}));
        let _ = self.process.wait(LIMIT);
    }
}

fn user_data(folder: &Path) -> String {
    format!("--user-data-dir={}", folder.display())
}
