#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cluster/observe/json_lines.hpp"
#include "cluster/observe/progress.hpp"
#include "cluster/observe/report.hpp"
#include "cluster/observe/run_reporter.hpp"
#include "tests/unit/lowered_limit.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

using namespace std::chrono_literals;
using namespace troupe;
using namespace troupe::cluster;

step_report report_of(std::uint64_t step, double seconds = 0.5) {
  return {step, 2.5, seconds, 128.25, 0.125, {}};
}

evaluation_report evaluation_of(std::uint64_t step, double accuracy, double loss) {
  return {step, {{"accuracy", accuracy, true}, {"loss", loss, false, "eval_loss"}}};
}

// An anonymous file, a clock that is moved by hand and a width.
class screen {
 public:
  progress_options options(std::uint64_t total, std::uint64_t per_epoch, progress_style style) {
    progress_options out;
    out.total_steps = total;
    out.steps_per_epoch = per_epoch;
    out.style = style;
    out.out = file_.get();
    out.columns = [this] { return columns; };
    out.now = [this] { return now; };
    return out;
  }

  // What was written since the last call, with ESC as '^'.
  std::string text() {
    std::fflush(file_.get());
    const long end = std::ftell(file_.get());
    std::string out(static_cast<std::size_t>(end - read_), '\0');
    std::fseek(file_.get(), read_, SEEK_SET);
    REQUIRE(std::fread(out.data(), 1, out.size(), file_.get()) == out.size());
    std::fseek(file_.get(), 0, SEEK_END);
    read_ = end;
    for (char& c : out)
      if (c == '\x1b') c = '^';
    return out;
  }

  int columns = 80;
  std::chrono::steady_clock::time_point now{};

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), &std::fclose};
  long read_ = 0;
};

// A line, where no file may have more bytes.
result<void> write_within(json_lines& lines, std::size_t most_bytes) {
  const tests::small_files limited(most_bytes);
  return lines.write(evaluation_of(2, 0.5, 1));
}

}  // namespace

TEST_CASE("the bubble is the share of stage time without arithmetic") {
  const auto of = [](const std::vector<double>& busy, double seconds) {
    std::vector<stage_report> stages;
    stages.reserve(busy.size());
    for (const double b : busy) stages.push_back({"s", b, 0, 0});
    return bubble_of(stages, seconds);
  };
  using Catch::Matchers::WithinAbs;
  CHECK_THAT(of({1, 0.5}, 1), WithinAbs(0.25, 1e-12));
  CHECK_THAT(of({2, 2, 2, 2}, 2), WithinAbs(0, 1e-12));
  CHECK(of({0}, 3) == 1);
  CHECK(of({1.1}, 1) == 0);
  CHECK(of({}, 1) == 0);
  CHECK(of({1}, 0) == 0);
  CHECK(of({1}, std::numeric_limits<double>::quiet_NaN()) == 0);
}

TEST_CASE("each report is one JSON line, readable at once") {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("troupe-observe-" + std::to_string(::getpid()));
  {
    auto lines = json_lines::open(path);
    REQUIRE(lines);
    step_report step{3,   0.5,   0.25,
                     256, 0.125, {{"stage-0", 0.1, 0.15, 1024, 512}, {"\xff", 0, 0, 0, 0}}};
    REQUIRE(lines->write(step));
    const std::string first =
        R"({"step":3,"loss":0.5,"seconds":0.25,"samples_per_s":256.0,"images_per_s":256.0,"bubble":0.125,"stages":[)"
        R"({"name":"stage-0","busy_s":0.1,"idle_s":0.15,"peak_memory_bytes":1024,"peak_context_bytes":512},)"
        "{\"name\":\"\xef\xbf\xbd\",\"busy_s\":0.0,\"idle_s\":0.0,\"peak_memory_bytes\":0,\"peak_"
        "context_bytes\":0}]}\n";
    CHECK(testing::read_bytes(path) == first);
    step.loss_scale = 1024;
    step.stages = {{"s", 0, 0, 1, 2, 4096, 5000}};
    const std::string stage =
        R"({"name":"s","busy_s":0.0,"idle_s":0.0,"peak_memory_bytes":1,"peak_context_bytes":2,)"
        R"("peak_device_bytes":4096,"predicted_device_bytes":5000})";
    REQUIRE(lines->write(step));
    const std::string second =
        R"({"step":3,"loss":0.5,"seconds":0.25,"samples_per_s":256.0,"images_per_s":256.0,"bubble":0.125,)"
        R"("loss_scale":1024.0,"stages":[)" +
        stage + "]}\n";
    CHECK(testing::read_bytes(path) == first + second);
    REQUIRE(lines->write(evaluation_of(3, 0.75, std::numeric_limits<double>::infinity())));
    CHECK(testing::read_bytes(path) ==
          first + second + R"({"eval_step":3,"accuracy":0.75,"eval_loss":null})" + "\n");
  }
  std::filesystem::remove(path);
}

TEST_CASE("a JSON file that cannot be opened or written is named") {
  const auto absent = json_lines::open("/nowhere/run.jsonl");
  REQUIRE_FALSE(absent);
  CHECK(absent.error() == error{errc::io_failed,
                                "/nowhere/run.jsonl: the JSON lines cannot be "
                                "written: No such file or directory"});
  auto full = json_lines::open("/dev/full");
  REQUIRE(full);
  const auto written = full->write(report_of(1));
  REQUIRE_FALSE(written);
  CHECK(written.error() == error{errc::io_failed,
                                 "/dev/full: the JSON lines cannot be written: No "
                                 "space left on device"});
}

TEST_CASE("what a JSON file holds already is kept under another name, and never lost") {
  const testing::scratch_folder folder;
  const auto file = folder / "run.jsonl";
  std::filesystem::create_symlink("run.jsonl", folder / "link");
  const auto run = [&](double loss) {
    auto lines = json_lines::open(folder / "link");
    REQUIRE(lines);
    REQUIRE(lines->write(evaluation_of(1, 0.5, loss)));
    return lines->kept();
  };
  const auto line = [](const std::string& loss) {
    return R"({"eval_step":1,"accuracy":0.5,"eval_loss":)" + loss + "}\n";
  };
  CHECK(run(1) == "");
  const auto real = std::filesystem::canonical(folder.path());
  CHECK(run(2) == real / "run.jsonl.old");
  CHECK(run(3) == real / "run.jsonl.old-2");
  CHECK(testing::read_bytes(file) == line("3.0"));
  CHECK(testing::read_bytes(folder / "run.jsonl.old") == line("1.0"));
  CHECK(testing::read_bytes(folder / "run.jsonl.old-2") == line("2.0"));
  CHECK(std::filesystem::is_symlink(folder / "link"));
  testing::write_bytes(folder / "empty", "");
  REQUIRE(json_lines::open(folder / "empty"));
  CHECK_FALSE(std::filesystem::exists(folder / "empty.old"));
}

TEST_CASE("a trainer that was started again appends to the JSON file of its run") {
  const testing::scratch_folder folder;
  const auto file = folder / "run.jsonl";
  const std::string first = R"({"eval_step":1,"accuracy":0.5,"eval_loss":1.0})"
                            "\n";
  const std::string second = R"({"restart":2,"after_step":1})"
                             "\n";
  const auto go_on = [&] {
    auto lines = json_lines::open(file, lines_before::of_this_run);
    REQUIRE(lines);
    CHECK(lines->kept().empty());
    REQUIRE(lines->write(restart_report{.restart = 2, .after_step = 1}));
    return testing::read_bytes(file);
  };
  testing::write_bytes(file, first);
  CHECK(go_on() == first + second);
  testing::write_bytes(file, first + R"({"step":2,"lo)");
  CHECK(go_on() == first + second);
  testing::write_bytes(file, first + std::string(10'000, 'x'));
  CHECK(go_on() == first + second);
  testing::write_bytes(file, R"({"step":2,"lo)");
  CHECK(go_on() == second);
  std::filesystem::remove(file);
  CHECK(go_on() == second);
  CHECK_FALSE(std::filesystem::exists(folder / "run.jsonl.old"));
}

TEST_CASE("of a JSON line that does not fit nothing is left of what a trainer appends") {
  const testing::scratch_folder folder;
  testing::write_bytes(folder / "x", "{}\n");
  auto lines = json_lines::open(folder / "x", lines_before::of_this_run);
  REQUIRE(lines);
  REQUIRE_FALSE(write_within(*lines, 3 + 10));
  CHECK(testing::read_bytes(folder / "x") == "{}\n");
}

TEST_CASE("what another run has left where a descriptor leads to is neither cut nor emptied") {
  const testing::scratch_folder folder;
  const std::string left = "of another run, and no whole line";
  testing::write_bytes(folder / "x", left);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> own(std::fopen((folder / "x").c_str(), "a"),
                                                            &std::fclose);
  REQUIRE(own);
  auto lines = json_lines::open("/proc/self/fd/" + std::to_string(::fileno(own.get())));
  REQUIRE(lines);
  CHECK(testing::read_bytes(folder / "x.old") == left);
  REQUIRE_FALSE(write_within(*lines, left.size() + 10));
  CHECK(testing::read_bytes(folder / "x.old") == left);
}

TEST_CASE("a file with lines is known by what it is, and a device is none") {
  const testing::scratch_folder folder;
  const auto file = folder / "run.jsonl";
  CHECK_FALSE(file_with_lines::at(""));
  CHECK_FALSE(file_with_lines::at(file));
  CHECK_FALSE(file_with_lines::at("/dev/null"));
  testing::write_bytes(file, "");
  CHECK_FALSE(file_with_lines::at(file));
  testing::write_bytes(file, "{}\n");
  const auto there = file_with_lines::at(file);
  REQUIRE(there);
  std::filesystem::create_symlink("run.jsonl", folder / "link");
  CHECK(file_with_lines::at(folder / "link") == there);
  REQUIRE(json_lines::open(file));  // renames it
  testing::write_bytes(file, "{}\n");
  CHECK(file_with_lines::at(file) != there);
}

TEST_CASE("of a JSON line that does not fit nothing is left") {
  const testing::scratch_folder folder;
  auto lines = json_lines::open(folder / "x");
  REQUIRE(lines);
  REQUIRE(lines->write(evaluation_of(1, 0.5, 1)));
  const auto whole = testing::read_bytes(folder / "x");
  REQUIRE_FALSE(write_within(*lines, whole.size() + 10));
  CHECK(testing::read_bytes(folder / "x") == whole);
}

TEST_CASE("a JSON file that takes no more is one warning, and the run goes on") {
  screen terminal;
  observe_config observe;
  observe.json = "/dev/full";
  auto report =
      run_reporter::open(observe, 0, false, terminal.options(3, 0, progress_style::lines));
  REQUIRE(report);
  for (std::uint64_t step = 1; step <= 3; ++step) (*report)->step(report_of(step));
  (*report)->finish();
  const auto text = terminal.text();
  const std::string warning =
      "warning: /dev/full: the JSON lines cannot be written: No space left on device; the run goes "
      "on without them\n";
  const auto at = text.find(warning);
  REQUIRE(at != std::string::npos);
  CHECK(text.find("warning", at + 1) == std::string::npos);
  CHECK(text.find("step 3/3") != std::string::npos);
}

TEST_CASE("a JSON file that another trainer of a run cannot open any more does not end the run") {
  screen terminal;
  const testing::scratch_folder folder;
  observe_config observe;
  observe.json = folder / "pipe";
  REQUIRE(::mkfifo(observe.json.c_str(), 0600) == 0);  // whose reader has ended
  const auto begin = [&](std::uint32_t restart) {
    return run_reporter::open(observe, restart, false,
                              terminal.options(3, 0, progress_style::lines));
  };
  CHECK_FALSE(begin(0));
  auto report = begin(1);
  REQUIRE(report);
  (*report)->restart({.restart = 1, .after_step = 2});
  (*report)->step(report_of(3));
  const auto text = terminal.text();
  CHECK(text.find("warning: " + observe.json.string() + ": ") == 0);
  CHECK(text.find("the run goes on without them\n") != std::string::npos);
  CHECK(text.find("step 3/3") != std::string::npos);
}

TEST_CASE("a short run has a plain line for every step") {
  screen out;
  progress shown(out.options(3, 2, progress_style::lines));
  for (std::uint64_t step = 1; step <= 3; ++step) shown.step(report_of(step));
  shown.evaluation(evaluation_of(3, 0.79123, 0.56789));
  shown.finish();
  CHECK(out.text() ==
        "step 1/3 (epoch 1/2): loss 2.5000, 128.2 samples/s, bubble 12.5%, ETA 0:01\n"
        "step 2/3 (epoch 1/2): loss 2.5000, 128.2 samples/s, bubble 12.5%, ETA 0:01\n"
        "step 3/3 (epoch 2/2): loss 2.5000, 128.2 samples/s, bubble 12.5%, ETA 0:00\n"
        "evaluation after step 3: accuracy 79.12%, loss 0.5679\n");
}

TEST_CASE("a long run has a plain line about every two seconds, and the first and the last") {
  screen out;
  progress shown(out.options(100, 0, progress_style::lines));
  for (std::uint64_t step = 1; step <= 100; ++step) {
    shown.step(report_of(step));
    out.now += 500ms;
  }
  std::istringstream text(out.text());
  std::vector<std::string> steps;
  for (std::string line; std::getline(text, line);) steps.push_back(line.substr(0, line.find(':')));
  REQUIRE(steps.size() == 26);
  CHECK(steps[0] == "step 1/100");
  CHECK(steps[1] == "step 5/100");
  CHECK(steps[24] == "step 97/100");
  CHECK(steps[25] == "step 100/100");
}

TEST_CASE("a run that ends early shows its last step") {
  screen out;
  progress shown(out.options(100, 0, progress_style::lines));
  shown.step(report_of(1));
  shown.step(report_of(2));
  out.text();
  shown.finish();
  CHECK(out.text() == "step 2/100: loss 2.5000, 128.2 samples/s, bubble 12.5%, ETA 0:49\n");
  shown.finish();
  CHECK(out.text().empty());
}

TEST_CASE("a program's own metrics are shown and written in their order") {
  const evaluation_report report{7, {{"top-2", 0.875, true}, {"distance", 0.25}}};
  screen out;
  progress shown(out.options(1, 0, progress_style::quiet));
  shown.evaluation(report);
  shown.evaluation({8});
  CHECK(out.text() ==
        "evaluation after step 7: top-2 87.50%, distance 0.2500\nevaluation after step 8\n");
  const testing::scratch_folder folder;
  auto lines = json_lines::open(folder / "x");
  REQUIRE(lines);
  REQUIRE(lines->write(report));
  CHECK(testing::read_bytes(folder / "x") == R"({"eval_step":7,"top-2":0.875,"distance":0.25})"
                                             "\n");
  CHECK(report.value_of("distance") == 0.25);
  CHECK_FALSE(report.value_of("loss"));
}

TEST_CASE("a quiet run shows evaluations and printed lines alone") {
  screen out;
  progress shown(out.options(1, 0, progress_style::quiet));
  shown.step(report_of(1));
  shown.print("hello");
  shown.evaluation(evaluation_of(1, 1, 0));
  shown.finish();
  CHECK(out.text() == "hello\nevaluation after step 1: accuracy 100.00%, loss 0.0000\n");
}

TEST_CASE("on a terminal one line is redrawn, and other lines go above it") {
  screen out;
  out.columns = 96;
  progress shown(out.options(4, 2, progress_style::bar));
  shown.print("before");
  CHECK(out.text() == "before\n");
  shown.step(report_of(1));
  const std::string first =
      "\r^[Kepoch 1/2  step 1/4  #####...............  loss 2.5000  128.2 samples/s  bubble 12.5%  "
      "ETA "
      "0:02";
  CHECK(out.text() == first);
  shown.print("between");
  CHECK(out.text() == "\r^[Kbetween\n" + first);
  out.now += 100ms;
  shown.step(report_of(4));
  CHECK(
      out.text() ==
      "\r^[Kepoch 2/2  step 4/4  ####################  loss 2.5000  128.2 samples/s  bubble 12.5%  "
      "ETA 0:00");
  shown.evaluation(evaluation_of(4, 0.5, 1));
  CHECK(
      out.text().starts_with("\r^[Kevaluation after step 4: accuracy 50.00%, loss 1.0000\n\r^[K"));
  shown.finish();
  CHECK(out.text() == "\n");
  shown.print("after");
  CHECK(out.text() == "after\n");
}

TEST_CASE("the live line is drawn at a bounded pace, but always for the last step") {
  screen out;
  progress shown(out.options(3, 0, progress_style::bar));
  shown.step(report_of(1));
  out.text();
  out.now += 10ms;
  shown.step(report_of(2));
  CHECK(out.text().empty());
  shown.step(report_of(3));
  CHECK(out.text().find("step 3/3") != std::string::npos);
}

TEST_CASE("the live line never reaches the terminal's last column") {
  screen out;
  for (out.columns = 1; out.columns < 200; ++out.columns) {
    progress shown(out.options(1000, 100, progress_style::bar));
    shown.step(report_of(123));
    const std::string text = out.text().substr(4);
    INFO(out.columns << ": " << text);
    CHECK(text.size() <= static_cast<std::size_t>(std::max(out.columns - 1, 1)));
    shown.finish();
    out.text();
  }
}

TEST_CASE("a narrow terminal loses the least needed first") {
  screen out;
  const auto drawn = [&out](int columns) {
    out.columns = columns;
    progress shown(out.options(1000, 100, progress_style::bar));
    shown.step(report_of(123));
    std::string text = out.text().substr(4);
    shown.finish();
    out.text();
    return text;
  };
  CHECK(drawn(80) ==
        "epoch 2/10  step 123/1000  loss 2.5000  128.2 samples/s  bubble 12.5%  ETA 7:19");
  CHECK(drawn(70) == "step 123/1000  loss 2.5000  128.2 samples/s  bubble 12.5%  ETA 7:19");
  CHECK(drawn(60) == "step 123/1000  loss 2.5000  128.2 samples/s  ETA 7:19");
  CHECK(drawn(45) == "step 123/1000  loss 2.5000  ETA 7:19");
  CHECK(drawn(30) == "step 123/1000  loss 2.5000");
  CHECK(drawn(20) == "step 123/1000");
  CHECK(drawn(8) == "step 12");
}

TEST_CASE("box characters are drawn where the terminal knows them") {
  screen out;
  progress_options options = out.options(2, 0, progress_style::bar);
  options.unicode = true;
  out.columns = 74;
  progress shown(options);
  shown.step(report_of(1));
  CHECK(out.text().find("step 1/2  ━━━━─────  loss") != std::string::npos);
}

TEST_CASE("hours are shown where there are some") {
  screen out;
  progress shown(out.options(7000, 0, progress_style::lines));
  shown.step(report_of(1, 1));
  CHECK(out.text().ends_with("ETA 1:56:39\n"));
}

TEST_CASE("a file is given plain lines") {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  CHECK(progress_options_for(file.get()).style == progress_style::lines);
}

TEST_CASE("lines of several threads stay whole") {
  screen out;
  progress shown(out.options(500, 0, progress_style::lines));
  std::thread steps([&] {
    for (std::uint64_t step = 1; step <= 500; ++step) shown.step(report_of(step));
  });
  for (int i = 0; i < 500; ++i) shown.print("line");
  steps.join();
  std::istringstream text(out.text());
  int lines = 0;
  for (std::string line; std::getline(text, line);) lines += line == "line" ? 1 : 0;
  CHECK(lines == 500);
}
