//! The files of the console, as they are in the folder `console`. They are part of the binary, so that
//! it needs no other file, and are never made by a build step.

use std::sync::LazyLock;

/// One file of the console.
#[derive(Debug)]
pub(crate) struct ConsoleFile {
    /// Its path below the folder.
    pub(crate) path: &'static str,
    /// Its content.
    pub(crate) bytes: &'static [u8],
}

/// What a browser may do with the console: scripts, styles and requests of this server, and nothing
/// that is written into a page.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; manifest-src 'self'; form-action 'self'; \
    base-uri 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(ConsoleFile { path: $path, bytes: include_bytes!(concat!("../console/", $path)) }),*]
    };
}

/// Every file that is served.
const FILES: &[ConsoleFile] = files![
    "app.js",
    "icon.svg",
    "lib/api.js",
    "lib/chart.js",
    "lib/format.js",
    "lib/map.js",
    "lib/measures.js",
    "lib/parts.js",
    "lib/request.js",
    "lib/router.js",
    "lib/selector.js",
    "lib/store.js",
    "lib/table.js",
    "lib/theme.js",
    "lib/view.js",
    "parts.css",
    "style.css",
    "vendor/hooks.js",
    "vendor/htm.js",
    "vendor/preact.js",
    "vendor/uplot.css",
    "vendor/uplot.js",
    "views/capacity.js",
    "views/choice.js",
    "views/decisions.js",
    "views/fleet.js",
    "views/index.js",
    "views/instances.js",
    "views/log.js",
    "views/mine.js",
    "views/moves.js",
    "views/nodes.js",
    "views/place.js",
    "views/policy.js",
    "views/queue.js",
    "views/resources.js",
    "views/timeline.js",
    "views/workloads.js",
];

/// The page that loads the rest; it has no data of the fleet.
pub(crate) fn index() -> &'static ConsoleFile {
    static INDEX: &ConsoleFile =
        &ConsoleFile { path: "index.html", bytes: include_bytes!("../console/index.html") };
    INDEX
}

impl ConsoleFile {
    /// The file at a path.
    pub(crate) fn find(path: &str) -> Option<&'static Self> {
        FILES.iter().find(|file| file.path == path)
    }

    /// What kind of file it is.
    pub(crate) fn content_type(&self) -> &'static str {
        match self.path.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            Some("html") => "text/html; charset=utf-8",
            _ => "text/plain; charset=utf-8",
        }
    }

    /// A tag that changes with the content.
    pub(crate) fn etag(&self) -> &'static str {
        static TAGS: LazyLock<Vec<(&'static str, String)>> = LazyLock::new(|| {
            let files = FILES.iter().chain([index()]);
            files.map(|file| (file.path, tag(file.bytes))).collect()
        });
        TAGS.iter().find(|(path, _)| *path == self.path).map_or("", |(_, tag)| tag.as_str())
    }
}

fn tag(bytes: &[u8]) -> String {
    let hash = blake3::hash(bytes).to_hex();
    format!("\"{}\"", &hash[..16])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Paths of files below a folder.
    fn below(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below(root, &path, found);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn every_script_style_and_picture_of_the_folder_is_served() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let mut found = BTreeSet::new();
        below(&root, &root, &mut found);
        found.retain(|path| [".js", ".css", ".svg"].iter().any(|end| path.ends_with(end)));
        let listed: BTreeSet<String> = FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(listed, found);
    }

    #[test]
    fn every_file_has_a_tag_of_its_content() {
        let tags: BTreeSet<&str> = FILES.iter().map(ConsoleFile::etag).collect();
        assert_eq!(tags.len(), FILES.len());
        assert!(tags.iter().all(|tag| tag.len() == 18), "{tags:?}");
        assert_eq!(index().etag().len(), 18);
    }

    #[test]
    fn the_page_has_no_script_or_style_in_it_and_loads_nothing_from_elsewhere() {
        let page = std::str::from_utf8(index().bytes).unwrap();
        for part in ["style=", "<style", "onload", "http://", "https://", "//cdn"] {
            assert!(!page.contains(part), "{part}");
        }
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script type=\"module\" src=\"/console/").count()
        );
    }
}
