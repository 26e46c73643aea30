//! The live page of a daemon in its sandbox, as a person in a browser has it: in light and dark, by keyboard, in a narrow window.

use std::net::TcpListener;

use lab::Browser;

use super::*;

/// The row of a port, as the text of its cells.
fn row(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('#ports tr')].filter(row => row.cells[0].innerText === '{name}')\
         .map(row => [...row.cells].map(cell => cell.innerText))[0]"
    )
}

/// The least contrast of any text with what is behind it, as WCAG counts it, and the luminance of the page.
const CONTRAST: &str = "(() => {
    const luminance = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(part => part / 255)
        .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const paper = luminance(getComputedStyle(document.body).backgroundColor);
    const own = (element) => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    const shown = [...document.body.querySelectorAll('*')].filter(element => own(element) && element.checkVisibility());
    const contrasts = shown.map(element => luminance(getComputedStyle(element).color))
        .map(ink => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05));
    return { paper, texts: contrasts.length, least: Math.min(...contrasts) };
})()";

/// What has the focus: its id, or that of its title.
const FOCUS: &str =
    "document.activeElement.id || document.activeElement.getAttribute('aria-labelledby')";

struct Scene {
    testbed: Testbed,
    browser: Browser,
}

/// A guest that is there, one that is not, and the page.
fn scene() -> Option<Scene> {
    lab::needed(lab::preflight(&["ping"]))?;
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut testbed = Testbed::start(2, &format!("workers = 1\nmetrics = \"{address}\""));
    testbed.join(0, &[]);
    let mut browser = lab::needed(Browser::open(&format!("http://{address}/")))?;
    browser.wait("document.querySelectorAll('#ports tr').length === 1").unwrap();
    Some(Scene { testbed, browser })
}

#[test]
fn the_page_follows_a_daemon_in_its_sandbox() {
    let Some(Scene { mut testbed, mut browser }) = scene() else { return };
    // As by default, with all that this takes from the thread that serves the page.
    let threads = std::fs::read_dir(format!("/proc/{}/task", testbed.daemon.pid())).unwrap();
    for thread in threads.filter_map(Result::ok) {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        // One that served a client may have ended.
        let is_confined = status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1");
        assert!(status.is_empty() || is_confined, "{status}");
    }
    let [first, second] = [0, 1].map(|guest| testbed.guests[guest].namespace.name().to_owned());
    let absent = format!("document.getElementById('absent').innerText === 'Not started: {second}'");
    browser.wait(&absent).unwrap();
    // It is not loaded again: the page follows by itself.
    testbed.join(1, &[]);
    browser.wait(&format!("{}?.[2] === 'up'", row(&second))).unwrap();
    let event = format!(
        "document.getElementById('events').innerText.includes('connected guest=\"{second}\"')"
    );
    browser.wait(&event).unwrap();
    let mut ping = testbed.guests[0].namespace.exec("ping").unwrap();
    ping.args(["-q", "-i", "0.05", &testbed.guests[1].ipv4.to_string()]);
    let mut ping = Process::capture(ping).unwrap();
    // Frames per second and bits per second, in and out.
    let rates = format!("{}.slice(3, 7).every(rate => parseFloat(rate) > 5)", row(&first));
    browser.wait(&rates).unwrap();
    ping.stop().unwrap();
    browser.wait(&format!("{}.slice(3, 7).every(rate => rate === '0')", row(&first))).unwrap();
    testbed.leave(1);
    browser.wait(&absent).unwrap();
    assert_eq!(browser.faults(), [""; 0]);

    // Without a daemon it says so, and goes on with the next one.
    testbed.daemon.stop().unwrap();
    browser
        .wait("document.getElementById('trouble').innerText.includes('does not answer')")
        .unwrap();
    testbed.restart();
    browser.wait("document.getElementById('trouble').innerText === ''").unwrap();
    let pid = testbed.daemon.pid();
    let is_new = format!("document.getElementById('summary').innerText.includes('process {pid},')");
    browser.wait(&is_new).unwrap();
}

#[test]
fn the_page_can_be_read_in_light_and_in_dark_and_in_a_narrow_window() {
    let Some(Scene { testbed: _testbed, mut browser }) = scene() else { return };
    for (scheme, is_dark) in [("light", false), ("dark", true), ("light", false)] {
        browser.prefer(scheme).unwrap();
        let seen = browser.value(CONTRAST).unwrap();
        assert_eq!(seen["paper"].as_f64() < Some(0.1), is_dark, "{scheme}: {seen}");
        assert!(seen["texts"].as_u64() > Some(40), "{scheme}: {seen}");
        // The least of WCAG's level AA.
        assert!(seen["least"].as_f64() >= Some(4.5), "{scheme}: {seen}");
    }
    browser.resize(360, 640).unwrap();
    let is_wider = "document.documentElement.scrollWidth > innerWidth";
    assert_eq!(browser.value(is_wider).unwrap(), false, "the page itself must not scroll sideways");
    // No word is broken.
    let lines = "(() => {
        const words = document.createRange();
        words.selectNodeContents(document.querySelector('#ports td:nth-child(2)'));
        return words.getClientRects().length;
    })()";
    assert_eq!(browser.value(lines).unwrap(), 1);
}

#[test]
fn the_page_needs_no_mouse() {
    let Some(Scene { testbed: _testbed, mut browser }) = scene() else { return };
    browser.resize(360, 640).unwrap();
    let asked = "performance.getEntriesByType('resource').filter(it => it.name.endsWith('status.json')).length";
    for (key, pressed) in [("Enter", "Go on"), (" ", "Pause"), (" ", "Go on")] {
        if key == "Enter" {
            browser.press("Tab").unwrap();
        }
        assert_eq!(browser.value(FOCUS).unwrap(), "pause");
        browser.press(key).unwrap();
        let text = browser.value("document.activeElement.innerText").unwrap();
        assert_eq!(text, pressed, "{key:?}");
    }
    // A pause stops it, once an answer that was on its way is there.
    let mut before = browser.value(asked).unwrap();
    wait("a pause", || {
        std::thread::sleep(std::time::Duration::from_millis(2500));
        let now = browser.value(asked).unwrap();
        now == std::mem::replace(&mut before, now.clone())
    });
    browser.press("Enter").unwrap();
    browser.wait(&format!("{asked} > {before} + 1")).unwrap();

    // The tables in turn, each with a ring around it, and none loses the focus when it is filled again.
    for title in ["ports-title", "workers-title", "events-title"] {
        browser.press("Tab").unwrap();
        assert_eq!(browser.value(FOCUS).unwrap(), title);
        let ring = "parseFloat(getComputedStyle(document.activeElement).outlineWidth)";
        assert!(browser.value(ring).unwrap().as_f64() >= Some(2.0), "{title}");
        let now = browser.value(asked).unwrap();
        browser.wait(&format!("{asked} > {now} + 1")).unwrap();
        assert_eq!(browser.value(FOCUS).unwrap(), title, "it was filled again");
        // What does not fit can be reached.
        browser.press("ArrowRight").unwrap();
        browser.wait("document.activeElement.scrollLeft > 0").unwrap();
    }
    assert_eq!(browser.faults(), [""; 0]);
}
