// Stages in different processes send each other activations and gradients by UCX, to the bits of
// links, and what goes wrong there fails their step. Devices of tests have host memory, which UCX
// moves as it would a GPU's.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <set>

#include "actors/stage/edges/ucx_maker.hpp"
#include "tests/parity/nccl_company.hpp"
#include "tests/process_sockets.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/heard_stderr.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using engine::collective;

constexpr std::int64_t many = 1 << 20;  // elements: more than UCX sends before it is asked for

std::shared_ptr<actors::ucx_maker> over_host(c10::DeviceType type = c10::DeviceType::PrivateUse1,
                                             actors::ucx_patience waits = {}) {
  return std::make_shared<actors::ucx_maker>(
      actors::ucx_maker_options{.type = type,
                                .memory = messages::ucx::memory_kind::host,
                                .waits = waits,
                                .hold = fake::hold_memory});
}

/// Every stage is in another process than its neighbours; they share `count` devices.
void check_ucx_edges(task what, std::size_t stages, int count) {
  INFO(what.schedule << ", " << stages << " stages on " << count << " devices");
  const auto on_cpu = train(what, {c10::Device(c10::kCPU)});
  fake::reset();
  what.edges = engine::edge_transport::ucx;
  const auto by_ucx = train(what, cards(count), over_host(), separate_homes(stages));
  CHECK_THAT(by_ucx.line, ContainsSubstring("activations and gradients by UCX "));
  check_no_misuse();
  check_same(on_cpu, by_ucx);
}

const task two_near_stages = two_stages_by(engine::edge_transport::ucx);

/// What a port has told, which may be later than a test that fails.
struct told {
  std::shared_ptr<std::promise<result<void>>> promise =
      std::make_shared<std::promise<result<void>>>();
  std::future<result<void>> ended = promise->get_future();

  [[nodiscard]] engine::collective_port::done listener() const {
    return [to = promise](const result<void>& how) { to->set_value(how); };
  }
  result<void> how() {
    REQUIRE(ended.wait_for(20s) == std::future_status::ready);
    return ended.get();
  }
};

using end_of_edge = std::shared_ptr<engine::collective_port>;

/// The two ends of one, on the CPU.
std::pair<end_of_edge, end_of_edge> ends_of(const actors::ucx_maker& by) {
  const auto invitation = by.invite(2, engine::socket_reach::loopback, c10::kCPU).value();
  const auto join = [&](std::uint32_t rank) {
    return by.join({.name = "an edge", .invitation = invitation, .rank = rank, .ranks = 2}).value();
  };
  auto sender = join(0);
  return {std::move(sender), join(1)};
}

void send(engine::collective_port& by, const at::Tensor& what, told& whom) {
  by.submit({{.what = collective::send, .from = what, .peer = 1}}, whom.listener());
}

void receive(engine::collective_port& by, const at::Tensor& room, told& whom) {
  by.submit({{.what = collective::receive, .to = room, .peer = 0}}, whom.listener());
}

/// A device whose work never gets where it is waited for.
struct broken_device final : engine::nccl::device {
  struct broken_mark final : engine::nccl::mark {
    result<bool> reached() override { return fail(errc::handler_failed, "the device fails"); }
  };
  result<void> enter() override { return {}; }
  engine::nccl::stream_handle stream() override { return {}; }
  result<std::unique_ptr<engine::nccl::mark>> mark_own() override { return mark_callers(); }
  result<std::unique_ptr<engine::nccl::mark>> mark_callers() override {
    return std::make_unique<broken_mark>();
  }
  result<void> wait_for(engine::nccl::mark&) override { return {}; }
  result<void> run(const std::function<void()>&) override { return {}; }
};

/// A receiver's channel whose one copy never ends.
class endless_channel final : public messages::ucx::memory_channel {
 public:
  explicit endless_channel(std::promise<void>& begun) : begun_(begun) {}
  const std::vector<std::byte>& address() const noexcept override { return address_; }
  result<void> reach(std::span<const std::byte>) override { return {}; }
  result<bool> is_reached() const override { return true; }
  void send(const void*, std::size_t, done) override {}
  void receive(void*, std::size_t, done) override {
    receiving_ = 1;
    begun_.set_value();
  }
  void progress() override {}
  void cancel_receives() override {}
  std::size_t receiving() const noexcept override { return receiving_; }

 private:
  const std::vector<std::byte> address_{std::byte{1}};
  std::promise<void>& begun_;
  std::size_t receiving_ = 0;
};

}  // namespace

TEST_CASE("Two stages in different processes send by UCX to the bits of the CPU") {
  const prepared ready;
  for (const int count : {1, 2})
    check_ucx_edges({.build = decoder,
                     .batches = sentences({8, 7, 8}),
                     .cuts = {2},
                     .schedule = "zb-h1",
                     .optimizer = "adamw",
                     .options = {},
                     .clip_norm = 0.1},
                    2, count);
}

TEST_CASE("Stages of several chunks send by UCX in both directions to the bits of the CPU") {
  const prepared ready;
  for (const char* const schedule : {"interleaved-1f1b", "zb-v"})
    check_ucx_edges(
        {.build = resnet, .batches = images({8}), .cuts = {3, 5, 7}, .schedule = schedule}, 2, 2);
}

TEST_CASE("A stage that dies has its neighbour, which sends by UCX, fail within a second") {
  const prepared ready;
  company all(two_near_stages, cards(2), over_host(), separate_homes(2));
  auto pipeline = all.compose(two_near_stages);
  REQUIRE(pipeline.train(two_near_stages.batches.front(), microbatches, rate));
  all.kill(1);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(pipeline.train(two_near_stages.batches.front(), microbatches, rate));
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
}

TEST_CASE("What is sent by UCX arrives in order and whole, small or large") {
  const auto by = over_host(c10::DeviceType::CPU);
  const auto [sender, receiver] = ends_of(*by);
  for (const std::int64_t elements : {std::int64_t{1}, std::int64_t{3000}, many}) {
    std::vector<at::Tensor> rooms;
    std::vector<told> sent(3), received(3);
    for (int i = 0; i < 3; ++i) send(*sender, at::full({elements}, 1.5 + i), sent[i]);
    for (int i = 0; i < 3; ++i)
      receive(*receiver, rooms.emplace_back(at::zeros({elements})), received[i]);
    for (int i = 0; i < 3; ++i) {
      CHECK(sent[i].how());
      CHECK(received[i].how());
      CHECK(at::equal(rooms[i], at::full({elements}, 1.5 + i)));
    }
  }
}

TEST_CASE("A tensor of another size than the receiver expects is refused, and so is all after it") {
  const auto by = over_host(c10::DeviceType::CPU);
  const auto [sender, receiver] = ends_of(*by);
  told sent, received, later;
  send(*sender, at::zeros({8}), sent);
  receive(*receiver, at::zeros({9}), received);
  CHECK(error_of(received.how()) ==
        error{errc::bad_frame, "an edge: the sender sent 32 bytes for 36"});
  receive(*receiver, at::zeros({8}), later);
  CHECK(error_of(later.how()).code == errc::bad_frame);
}

TEST_CASE("A receiver that never comes, and one that never receives, are waited for so long") {
  const auto by = over_host(c10::DeviceType::CPU, {.join = 200ms, .operation = 400ms});
  const auto invitation = by->invite(2, engine::socket_reach::loopback, c10::kCPU).value();
  const auto alone =
      by->join({.name = "an edge", .invitation = invitation, .rank = 0, .ranks = 2}).value();
  told unheard;
  send(*alone, at::zeros({8}), unheard);
  CHECK(error_of(unheard.how()) == error{errc::timed_out, "an edge: the other stage has not come"});

  const auto [sender, receiver] = ends_of(*by);
  told first, arrived, unread;
  send(*sender, at::zeros({8}), first);
  receive(*receiver, at::zeros({8}), arrived);
  REQUIRE(arrived.how());
  send(*sender, at::zeros({many}), unread);
  CHECK(error_of(unread.how()) ==
        error{errc::timed_out, "an edge: a tensor is not there after 400 ms"});
}

TEST_CASE("An invitation by UCX that nobody has followed in time is forgotten") {
  const auto by = over_host(c10::DeviceType::CPU, {.join = 50ms});
  const auto invite = [&] {
    return by->invite(2, engine::socket_reach::loopback, c10::kCPU).value();
  };
  const auto first = invite();
  std::this_thread::sleep_for(100ms);
  const auto second = invite();
  const auto join = [&](const std::string& text) {
    return by->join({.name = "an edge", .invitation = text, .rank = 0, .ranks = 2});
  };
  CHECK(error_of(join(first)).code == errc::bad_frame);
  CHECK(join(second));
}

TEST_CASE("What is under way when a port is lost or given up is told so at once") {
  const auto by = over_host(c10::DeviceType::CPU);
  const auto [unheard, receiver] = ends_of(*by);
  auto [sender, other] = ends_of(*by);  // whose receiver stays, but receives nothing
  told lost, given_up;
  receive(*receiver, at::zeros({many}), lost);
  receiver->lose({errc::peer_lost, "gone"});
  CHECK(error_of(lost.how()) == error{errc::peer_lost, "gone"});
  send(*sender, at::zeros({many}), given_up);
  const auto begin = std::chrono::steady_clock::now();
  sender.reset();
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  CHECK(error_of(given_up.how()).code == errc::cancelled);
}

TEST_CASE("A copy that UCX does not end is waited for so long, warned of, and keeps its memory") {
  std::promise<void> begun;
  std::weak_ptr<void> memory;
  auto receiver = actors::ucx_port::open(
                      {.name = "an edge",
                       .library = nullptr,
                       .hold =
                           [&](const at::Tensor& whose, bool) {
                             const auto held = std::make_shared<at::Tensor>(whose);
                             memory = held;
                             return actors::held_memory(held, held->data_ptr());
                           },
                       .sender = {std::byte{1}},
                       .waits = {.copies = 200ms},
                       .channel = [&]() -> result<std::unique_ptr<messages::ucx::memory_channel>> {
                         return std::make_unique<endless_channel>(begun);
                       }})
                      .value();
  told lost, later;
  receive(*receiver, at::zeros({8}), lost);
  REQUIRE(begun.get_future().wait_for(20s) == std::future_status::ready);
  receiver->lose({errc::peer_lost, "gone"});
  CHECK(error_of(lost.how()) == error{errc::peer_lost, "gone"});
  receive(*receiver, at::zeros({8}), later);
  CHECK(error_of(later.how()) == error{errc::peer_lost, "gone"});
  CHECK_FALSE(memory.expired());
  const heard_stderr heard;
  const auto begin = std::chrono::steady_clock::now();
  receiver.reset();
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(took >= 200ms);
  CHECK(took < 1s);
  CHECK_THAT(heard.text(), ContainsSubstring("an edge: UCX has not ended a copy; the memory that "
                                             "it goes to is not used again"));
  CHECK_FALSE(memory.expired());
}

TEST_CASE("By UCX two stages meet without a socket at which anybody is heard") {
  namespace sockets = messages::testing;
  const auto by = over_host(c10::DeviceType::CPU);
  const auto before = sockets::sockets_of(getpid());
  const auto [sender, receiver] = ends_of(*by);
  told sent, received;
  send(*sender, at::zeros({many}), sent);
  receive(*receiver, at::zeros({many}), received);
  CHECK(sent.how());
  CHECK(received.how());
  auto made = sockets::sockets_of(getpid());
  for (const auto& each : before) made.erase(each);
  // UCX's shared memory has datagram sockets of the machine, which say nothing but "look".
  const std::string datagrams = "0002", no_flags = "00000000";
  std::set<std::string> of_machine;
  for (const auto& words : sockets::lines_of(getpid(), "unix", 6)) {
    if (!made.contains(words[6])) continue;
    of_machine.insert(words[6]);
    CHECK(words[3] == no_flags);  // it does not listen
    CHECK(words[4] == datagrams);
  }
  CHECK(of_machine == made);
}

TEST_CASE("A device that fails fails all that a port by UCX was asked for, in its order") {
  const auto host = messages::ucx::memory_kind::host;
  const auto library = messages::ucx::open_for(host).value();
  const auto sender = actors::ucx_port::open({.name = "an edge",
                                              .library = library,
                                              .memory = host,
                                              .on = std::make_shared<broken_device>()})
                          .value();
  std::vector<told> unsent(3);
  for (auto& each : unsent) send(*sender, at::zeros({8}), each);
  const auto receiver =
      actors::ucx_port::open(
          {.name = "an edge", .library = library, .memory = host, .sender = sender->address()})
          .value();
  for (auto& each : unsent)
    CHECK(error_of(each.how()) == error{errc::handler_failed, "an edge: the device fails"});
  told later;
  send(*sender, at::zeros({8}), later);
  CHECK(error_of(later.how()) == error{errc::handler_failed, "an edge: the device fails"});
}

TEST_CASE("By UCX a tensor is sent to one other stage, and nothing else is done") {
  const auto by = over_host(c10::DeviceType::CPU);
  const auto [sender, receiver] = ends_of(*by);
  told wrong;
  receive(*sender, at::zeros({8}), wrong);
  CHECK(error_of(wrong.how()).code == errc::bad_config);
  CHECK(error_of(by->invite(3, engine::socket_reach::loopback, c10::kCPU)).text ==
        "UCX joins two stages, and no more");
  const auto refused = [&](std::uint32_t rank, const std::string& invitation) {
    return error_of(
        by->join({.name = "an edge", .invitation = invitation, .rank = rank, .ranks = 2}));
  };
  const error no_invitation{errc::bad_frame,
                            "an edge: what it was invited to UCX by is no invitation"};
  CHECK(refused(0, "00ff") == no_invitation);
  CHECK(refused(1, "no digits") == no_invitation);
  CHECK(refused(1, "") == no_invitation);
}

TEST_CASE("Stages that cannot send by UCX are refused in one line that says which and why") {
  const prepared ready;
  const auto refusal = [](const std::vector<c10::Device>& devices, homes in, const maker& by) {
    company all(two_near_stages, devices, by, std::move(in));
    return error_of(all.try_compose(two_near_stages)).text;
  };
  CHECK_THAT(refusal({c10::Device(c10::kCPU)}, separate_homes(2), over_host()),
             ContainsSubstring("edges = \"ucx\": stage-0: UCX would move the memory of GPUs, and "
                               "the stage computes on the CPU; or leave it out"));
  CHECK_THAT(refusal(cards(2), {std::make_shared<home>()}, over_host()),
             ContainsSubstring("no two neighbouring stages are in different processes"));
  const auto of_gpus = std::make_shared<actors::ucx_maker>(
      actors::ucx_maker_options{.type = c10::DeviceType::PrivateUse1});
  CHECK_THAT(
      refusal(cards(2), separate_homes(2), of_gpus),
      ContainsSubstring("cannot move the memory of GPUs (it was built without CUDA, or finds "
                        "no GPU); `./dev setup --cuda` installs one that can"));
}
