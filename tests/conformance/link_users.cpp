// Who reaches a link within one machine: this user's processes alone, through names that nobody
// else can have put there.
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "another_self.hpp"
#include "lent.hpp"
#include "link_target.hpp"
#include "messages/link/door/address.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"

namespace troupe::messages::testing {
namespace {

namespace fs = std::filesystem;

constexpr uid_t nobody = 65534;

/// A folder of this test's, with those rights.
struct folder : tests::scratch_folder {
  explicit folder(mode_t rights = 0700) : scratch_folder("/tmp") {
    REQUIRE(chmod(path().c_str(), rights) == 0);
  }
};

/// Has links make their sockets in that folder.
class runtime_folder {
 public:
  explicit runtime_folder(const fs::path& at) {
    if (const char* const now = std::getenv(name)) before_ = now;
    setenv(name, at.c_str(), 1);
  }
  runtime_folder(const runtime_folder&) = delete;
  runtime_folder& operator=(const runtime_folder&) = delete;
  ~runtime_folder() { before_ ? setenv(name, before_->c_str(), 1) : unsetenv(name); }

 private:
  static constexpr const char* name = "XDG_RUNTIME_DIR";
  std::optional<std::string> before_;
};

/// Where sockets are in a folder of that name.
fs::path sockets_in(const fs::path& at) {
  return at / ("troupe-" + std::to_string(geteuid()));
}

/// A child that is another user. It makes system calls alone: other threads' locks stay as they
/// were at the fork.
class other_user {
 public:
  explicit other_user(const std::function<int()>& does) : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool changed = syscall(SYS_setgroups, 0, nullptr) == 0 &&
                         syscall(SYS_setresgid, nobody, nobody, nobody) == 0 &&
                         syscall(SYS_setresuid, nobody, nobody, nobody) == 0;
    _exit(changed ? does() : 255);
  }
  other_user(const other_user&) = delete;
  other_user& operator=(const other_user&) = delete;
  ~other_user() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  /// What it ended with.
  int end() {
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status);
  }

 private:
  pid_t pid_;
};

void need_root() {
  if (geteuid() != 0) SKIP("only root can become another user, and this is none");
}

int connect_to(const door::address& where) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 254;
  if (connect(fd, where.get(), where.length) != 0) return errno;
  char byte = 0;
  return read(fd, &byte, 1) <= 0 ? 0 : 253;  // 0: connected, and the other side hung up
}

}  // namespace

TEST_CASE("another user of the machine cannot connect to a link within it", "[link]") {
  need_root();
  target<shm_backend> nodes;
  const door::address where = door::resolve(nodes.address, false).value();
  other_user them([&] { return connect_to(where); });
  CHECK(them.end() == EACCES);
  CHECK(nodes.refused(refusal::other_user) == 0);  // it did not even come to the door
  nodes.check_others();
}

TEST_CASE("another user who reaches a link's socket is refused by name", "[link]") {
  need_root();
  const folder open_to_all(0755);
  shm_backend backend;
  node<shm_backend> server(backend);
  const std::string path = open_to_all.path() / "socket";
  const std::string address = server.wire->listen("unix:" + path).value();
  REQUIRE(chmod(path.c_str(), 0777) == 0);
  const door::address where = door::resolve(address, false).value();
  other_user them([&] { return connect_to(where); });
  CHECK(them.end() == 0);
  CHECK(comes_true([&] { return server.wire->stats().refused(refusal::other_user) == 1; }));
  CHECK(server.ups.stays_empty(0ms));
  node<shm_backend> client(backend);
  CHECK(client.try_connect(address));
}

TEST_CASE("a link does not talk to another user who listens where it connects", "[link]") {
  need_root();
  const folder open_to_all(0777);
  const std::string path = open_to_all.path() / "socket";
  const door::address where = door::unix_address(path).value();
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
  const descriptor reading(ends[0]);
  descriptor writing(ends[1]);
  other_user them([&] {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool listens = fd >= 0 && bind(fd, where.get(), where.length) == 0 && listen(fd, 4) == 0;
    const char ready = listens ? 'y' : 'n';
    if (write(ends[1], &ready, 1) != 1) return 1;
    const int client = accept(fd, nullptr, nullptr);
    char byte = 0;
    return read(client, &byte, 1) == 0 ? 0 : 2;  // 2: it was told something
  });
  char ready = 0;
  REQUIRE(read(reading.get(), &ready, 1) == 1);
  REQUIRE(ready == 'y');
  shm_backend backend;
  node<shm_backend> client(backend);
  check_refused(client.try_connect("unix:" + path), errc::address_unavailable, "another user");
  CHECK(them.end() == 0);
}

TEST_CASE("be a listener until you are killed", "[.listener]") {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* const pipe_end = std::getenv("TROUPE_LISTENER_FD");
  REQUIRE(pipe_end != nullptr);
  shm_backend backend;
  node<shm_backend> here(backend);
  const std::string address = here.wire->listen("").value();
  REQUIRE(write(std::stoi(pipe_end), address.c_str(), address.size() + 1) > 0);
  mailbox<int>().next(std::chrono::hours(1));
}

TEST_CASE("sockets of killed processes are removed, and those of the living are not", "[link]") {
  const folder at;
  const runtime_folder here(at.path());
  const auto names = [&] {
    const fs::directory_iterator entries(sockets_in(at.path()));
    return std::distance(begin(entries), end(entries));
  };
  listening_self dead("[.listener]", "TROUPE_LISTENER_FD=");
  listening_self alive("[.listener]", "TROUPE_LISTENER_FD=");
  const std::string dead_path = dead.address().substr(5);
  CHECK(fs::path(dead_path).parent_path() == sockets_in(at.path()));
  CHECK((fs::status(sockets_in(at.path())).permissions() & fs::perms::mask) ==
        fs::perms::owner_all);
  dead.end();
  CHECK(fs::exists(dead_path));
  CHECK(names() == 2);
  shm_backend backend;
  {
    node<shm_backend> next(backend);
    REQUIRE(next.wire->listen(""));
    CHECK_FALSE(fs::exists(dead_path));
    CHECK(names() == 2);
    CHECK(next.try_connect(alive.address()));
  }
  CHECK(names() == 1);  // and its own goes with a link
}

TEST_CASE("no socket is made in a folder that others may enter or may have made", "[link]") {
  const folder at;
  const folder elsewhere;
  const runtime_folder here(at.path());
  const fs::path place = sockets_in(at.path());
  SECTION("others enter it") {
    REQUIRE(mkdir(place.c_str(), 0700) == 0);
    REQUIRE(chmod(place.c_str(), 0755) == 0);
  }
  SECTION("a group enters it") {
    REQUIRE(mkdir(place.c_str(), 0700) == 0);
    REQUIRE(chmod(place.c_str(), 0710) == 0);
  }
  SECTION("it is a link to another folder") fs::create_directory_symlink(elsewhere.path(), place);
  SECTION("it is a link that leads nowhere") fs::create_symlink("/nowhere/at/all", place);
  SECTION("it is a file") {
    const descriptor file(open(place.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    REQUIRE(file);
  }
  SECTION("it is another user's") {
    need_root();
    REQUIRE(mkdir(place.c_str(), 0700) == 0);
    REQUIRE(chown(place.c_str(), nobody, nobody) == 0);
  }
  shm_backend backend;
  node<shm_backend> link(backend);
  const error listening = error_of(link.wire->listen(""), errc::address_unavailable);
  CAPTURE(listening.text);
  CHECK(listening.text.find(place.string()) != std::string::npos);
  CHECK(listening.text.find("remove it") != std::string::npos);
  CHECK(fs::is_empty(elsewhere.path()));
}

TEST_CASE("a runtime folder that others enter is not used", "[link]") {
  const folder at(0755);
  const runtime_folder here(at.path());
  shm_backend backend;
  node<shm_backend> link(backend);
  const auto listening = link.wire->listen("");
  REQUIRE(listening);
  CHECK(listening->find(at.path().string()) == std::string::npos);
  CHECK(fs::is_empty(at.path()));
}

TEST_CASE("a name that is taken is not taken over", "[link]") {
  const folder at;
  const std::string path = at.path() / "socket";
  SECTION("by a file") {
    const descriptor file(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    REQUIRE(file);
  }
  SECTION("by a link that leads nowhere") fs::create_symlink(at.path() / "target", path);
  shm_backend backend;
  node<shm_backend> link(backend);
  CHECK(error_of(link.wire->listen("unix:" + path)).code == errc::address_unavailable);
  CHECK_FALSE(fs::exists(at.path() / "target"));
  link.wire.reset();
  CHECK(fs::exists(fs::symlink_status(path)));  // and not removed
}

TEST_CASE("a link within one machine opens no port, and one between machines no file", "[link]") {
  shm_backend within;
  node<shm_backend> one(within);
  CHECK(error_of(one.wire->listen("127.0.0.1:0")).text.find("opens none") != std::string::npos);
  REQUIRE_FALSE(one.try_connect("127.0.0.1:7"));
  tcp_backend between;
  node<tcp_backend> other(between);
  CHECK(error_of(other.wire->listen("unix:/tmp/troupe-test-no-socket"))
            .text.find("choose the shm transport") != std::string::npos);
  REQUIRE_FALSE(other.try_connect("unix:/tmp/troupe-test-no-socket"));
}

}  // namespace troupe::messages::testing
