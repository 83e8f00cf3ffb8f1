// The meeting of shm ranks: wrong members, strangers, deaths, limits.
#include "comm/rendezvous.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "comm/call.h"
#include "comm/ranks.h"

namespace megamoe::test {
namespace {

using namespace comm;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A rank's whole life: one buffer, one call.
std::string live(const std::string& key, int rank, int size, milliseconds deadline = seconds(60)) {
  Result<Group> group = Group::shm(key, rank, size);
  if (!group.is_ok()) return group.status().message();
  auto session = open_small(*group, deadline);
  if (!session.is_ok()) return session.status().message();
  const Status status = Caller(**session).call();
  return status.is_ok() ? "ok" : status.message();
}

Rendezvous as_member(const std::string& key, int rank, int size) {
  return Rendezvous{key, 0, 0, Hello{rank, size, {{"any", "1"}}, {}}, 4096};
}

/// Connects to the first rendezvous of `key` as soon as rank 0 is there.
Fd connect_when_there(const std::string& key) {
  for (;;) {
    Result<Fd> socket = connect_to(rendezvous_name(as_member(key, 1, 2)));
    if (!socket.is_ok() || socket->valid()) return socket.is_ok() ? std::move(*socket) : Fd();
    std::this_thread::sleep_for(milliseconds(1));
  }
}

std::string hello_of(int rank, int size) {
  Writer hello = say(Say::kHello);
  hello.number(static_cast<uint64_t>(rank)).number(static_cast<uint64_t>(size)).number(0).number(0).number(0);
  write_status(Status::ok(), hello);
  return hello.body();
}

TEST(Messages, TheLastOneBeforeTheEndArrives) {
  constexpr int kRounds = 150, kPairs = 200;  // about one of all sends between the reader's two looks
  const Deadline deadline{seconds(60)};
  int lost = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Fd> senders, readers;
    for (int i = 0; i < kPairs; ++i) {
      int pair[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
      senders.emplace_back(pair[0]);
      readers.emplace_back(pair[1]);
    }
    std::thread sender([&] {
      for (Fd& end : senders) {
        send_message(end, "last", {}, deadline);
        end.reset();
      }
    });
    Message message;
    for (const Fd& end : readers) {
      Received received = Received::kNothing;
      while (received == Received::kNothing) received = receive_message(end, message);
      lost += received == Received::kEnd ? 1 : 0;
    }
    sender.join();
  }
  EXPECT_EQ(lost, 0);
}

TEST(Rendezvous, StrangersDoNotDisturb) {
  const std::string key = fresh_key();
  const Deadline deadline{seconds(60)};
  Child first([&] { return live(key, 0, 2); });
  std::vector<Fd> held;
  const auto stranger = [&](const std::string& body, const std::vector<int>& fds = {}) {
    held.push_back(connect_when_there(key));
    if (!body.empty()) send_message(held.back(), body, fds, deadline);
  };
  stranger("");  // silent, stays connected
  stranger("GET / HTTP/1.1\r\n\r\n");
  stranger("x");
  stranger(std::string(60000, '\xff'));
  stranger(std::string(150000, 'a'));  // over the limit of a message
  stranger(std::string(8, '\0'), {0, 1});
  stranger(say(Say::kHello).body());  // cut short
  stranger(say(Say::kHello).number(1).number(2).number(0).number(0).number(uint64_t{1} << 60).body(),
           {0});  // absurd count
  stranger(say(Say::kHello).number(1).number(2).number(0).number(0).number(1).number(~uint64_t{0}).body(),
           {0});
  stranger(hello_of(1, 2));             // no process descriptor
  stranger(hello_of(1 << 20, 2), {0});  // absurd rank
  stranger(say_status(Say::kFail, Status(Code::kSystem, "evil")));
  stranger(say_status(Say::kMemory, Status::ok()), {0});
  stranger("");
  shutdown(held.back().get(), SHUT_RDWR);
  Child second([&] { return live(key, 1, 2); });
  EXPECT_EQ(first.finish().text, "ok");
  EXPECT_EQ(second.finish().text, "ok");
}

TEST(Rendezvous, MemberThatDiesEndsTheCreation) {
  const std::string key = fresh_key();
  Child first([&] { return live(key, 0, 3); });
  {
    const Fd socket = connect_when_there(key);
    send_message(socket, hello_of(2, 3), {open("/dev/null", O_RDONLY | O_CLOEXEC)}, Deadline{seconds(60)});
  }  // gone right after its hello, while rank 1 is still awaited
  EXPECT_EQ(first.finish().text, "rank 2 of shm group \"" + key + "\" ended while the buffer was created");
}

TEST(Rendezvous, HostThatDiesIsNamed) {
  const std::string key = fresh_key();
  bool in_use = false;
  Result<Fd> listener = listen_on(rendezvous_name(as_member(key, 0, 2)), in_use);
  ASSERT_TRUE(listener.is_ok());
  Child member([&] { return live(key, 1, 2); });
  Message message;
  Fd client;
  while (!client.valid()) client = accept_client(*listener);
  const Deadline deadline{seconds(60)};
  await_message(client, deadline);
  ASSERT_EQ(receive_message(client, message), Received::kMessage);
  send_message(client, say(Say::kProgress).text("rank 7").body(), {}, deadline);
  client.reset();
  EXPECT_EQ(member.finish().text, "rank 0 of shm group \"" + key + "\" ended while the buffer was created");
}

TEST(Rendezvous, ListenerThatIsOverIsTriedAgain) {
  const std::string key = fresh_key();
  Child member([&] { return live(key, 1, 2); });
  bool in_use = false;
  Result<Fd> old = listen_on(rendezvous_name(as_member(key, 0, 2)), in_use);
  ASSERT_TRUE(old.is_ok());
  Fd client;
  while (!client.valid()) client = accept_client(*old);
  client.reset();  // without a word; the member's next try may wait in the queue
  stop_listening(*old);
  Child host([&] { return live(key, 0, 2); });
  EXPECT_EQ(member.finish().text, "ok");
  EXPECT_EQ(host.finish().text, "ok");
}

TEST(Rendezvous, KeyInUseIsNamed) {
  const std::string key = fresh_key();
  bool in_use = false;
  Result<Fd> other = listen_on(rendezvous_name(as_member(key, 0, 2)), in_use);
  ASSERT_TRUE(other.is_ok());
  Child host([&] { return live(key, 0, 2, milliseconds(300)); });
  EXPECT_EQ(
      host.finish().text,
      "key = \"" + key + "\" was in use by another group of this user: expected a free key within 300 ms");
}

/// "creation 1 of ... began it: ...", of a rank that is a creation behind.
std::string behind(const std::string& key, int late, int ahead) {
  return "creation 1 of shm group \"" + key + "\" ended on rank " + std::to_string(ahead) +
         ", now at its creation 2, before rank " + std::to_string(late) +
         " began it: expected another try of the late ranks or new handles on all ranks";
}

// The one that began alone waits in its next try for an hour; the others begin the one that it left.
TEST(Rendezvous, RanksBehindAreToldAtOnceAndMeetInTheirNextTry) {
  for (const int alone : {0, 1, 2}) {
    const std::string key = fresh_key();
    int gave_up[2];
    ASSERT_EQ(pipe2(gave_up, O_CLOEXEC), 0);
    const auto life = [&](int rank) -> std::string {
      const Group group = Group::shm(key, rank, 3).value();
      char token = 0;
      if (rank != alone && read(gave_up[0], &token, 1) != 1) return "no token";
      const Status first =
          open_small(group, rank == alone ? milliseconds(50) : std::chrono::hours(1)).status();
      if (rank == alone && write(gave_up[1], "12", 2) != 2) return "no tokens";
      auto session = open_small(group, std::chrono::hours(1));
      if (!session.is_ok()) return session.status().message();
      const Status call = Caller(**session).call();
      return first.message() + (call.is_ok() ? "" : ", then " + call.message());
    };
    std::vector<Child> children;
    for (int r = 0; r < 3; ++r) children.emplace_back([&, r] { return life(r); });
    close(gave_up[0]);
    close(gave_up[1]);
    for (int r = 0; r < 3; ++r) {
      const std::string text = children[static_cast<size_t>(r)].finish().text;
      if (r == alone) {
        EXPECT_NE(text.find("did not come to create the buffer within 50 ms"), std::string::npos) << text;
      } else {
        // Rank 0 speaks for those that are with it, and leaves behind those that come later.
        EXPECT_TRUE(text == behind(key, 0, alone) || text == behind(key, r, 0))
            << "rank " << r << ": " << text;
      }
    }
  }
}

TEST(Rendezvous, ThreadsMayCreateAtTheSameTime) {
  const auto outcomes = run_shm(2, [](const Group& group) -> std::string {
    constexpr int kThreads = 6;
    std::vector<std::string> texts(kThreads);
    std::vector<std::thread> threads;
    for (std::string& text : texts) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20 && text.empty(); ++i) text = open_small(group).status().message();
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string all;
    for (const std::string& text : texts) all += text;
    return all;
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.text, "");
}

TEST(Rendezvous, GroupsWithDifferentKeysAreIndependent) {
  const std::string a = fresh_key(), b = fresh_key();
  std::vector<Child> children;
  for (int r = 0; r < 3; ++r) {
    children.emplace_back([&, r] { return live(a, r, 3); });
    children.emplace_back([&, r] { return live(b, 2 - r, 3); });
  }
  for (Child& child : children) EXPECT_EQ(child.finish().text, "ok");
}

TEST(Rendezvous, SameRankTwiceIsTheSameErrorForAll) {
  const std::string key = fresh_key();
  std::vector<Child> children;
  for (int rank : {0, 1, 1}) children.emplace_back([&, rank] { return live(key, rank, 3); });
  for (Child& child : children) {
    EXPECT_EQ(child.finish().text, "rank = 1 given by two members: expected each rank once");
  }
}

TEST(Rendezvous, DifferentSizeIsTheSameErrorForAll) {
  const std::string key = fresh_key();
  std::vector<Child> children;
  for (int rank = 0; rank < 4; ++rank) {
    children.emplace_back([&, rank] { return live(key, rank, rank == 1 ? 2 : 4); });
  }
  for (Child& child : children) {
    EXPECT_EQ(child.finish().text,
              "group size = 4 on ranks 0, 2, 3; 2 on rank 1: expected the same value on every rank");
  }
}

TEST(Rendezvous, MemberWithTheShorterDeadlineEndsItForAll) {
  const std::string key = fresh_key();
  Child host([&] { return live(key, 0, 3); });
  Child member([&] { return live(key, 1, 3, milliseconds(500)); });
  const std::string text =
      "rank 2 of shm group \"" + key + "\" did not come to create the buffer within 500 ms";
  EXPECT_EQ(member.finish().text, text);
  EXPECT_EQ(host.finish().text, text);
}

TEST(Rendezvous, NothingIsLeftInTheFileSystem) {
  const auto files = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/dev/shm")) ++count;
    return count;
  };
  const size_t before = files();
  const auto outcomes = run_shm(2, [](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    raise(SIGKILL);
    return {};
  });
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  EXPECT_EQ(files(), before);
}

TEST(Rendezvous, LimitsOfMemoryAreErrors) {
  const auto with_limit = [](auto resource, rlim_t bytes) {
    return run_shm(2, [=](const Group& group) -> std::string {
      rlimit limit{};
      getrlimit(resource, &limit);
      limit.rlim_cur = bytes;
      if (group.rank() == 1) setrlimit(resource, &limit);
      return Session::open(group, size_t{1} << 28, {}, {}).status().message();
    });
  };
  for (const auto& outcomes : {
         with_limit(RLIMIT_FSIZE, rlim_t{1} << 20)
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
             ,
             with_limit(RLIMIT_AS, rlim_t{1} << 27)
#endif
       }) {
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.signal, 0);
      EXPECT_EQ(outcome.text.find("rank 1: shared memory of 268435456 bytes: needed 268435456 bytes, "), 0u)
          << outcome.text;
    }
  }
}

TEST(Rendezvous, ASandboxWithoutProcessDescriptorsIsNamed) {
  Child child([] {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 434, 0, 1),  // pidfd_open
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{sizeof rules / sizeof rules[0], rules};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) return std::string("no filter");
    return live(fresh_key(), 0, 1);
  });
  EXPECT_EQ(child.finish().text,
            "pidfd_open: Operation not permitted, expected Linux 5.3 or later and a sandbox that allows it");
}

TEST(Rendezvous, TooFewDescriptorsIsAnError) {
  const auto outcomes = run_shm(4, [](const Group& group) -> std::string {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(open_fds()) + 2;
    if (group.rank() == 2) setrlimit(RLIMIT_NOFILE, &limit);
    return open_small(group, milliseconds(2000)).status().message();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.signal, 0);
    EXPECT_NE(outcome.text, "") << "creation cannot have worked";
  }
}

TEST(Group, WrongArguments) {
  const auto text = [](const std::string& key, int rank, int size) {
    return Group::shm(key, rank, size).status().message();
  };
  EXPECT_EQ(text("", 0, 1), "key = \"\" of 0 bytes: expected 1 to 64");
  EXPECT_EQ(text(std::string(65, 'k'), 0, 1),
            "key = \"" + std::string(65, 'k') + "\" of 65 bytes: expected 1 to 64");
  EXPECT_EQ(text("k", 0, 0), "size = 0: expected a value in [1, 1024]");
  EXPECT_EQ(text("k", 0, 1025), "size = 1025: expected a value in [1, 1024]");
  EXPECT_EQ(text("k", -1, 2), "rank = -1: expected a value in [0, 2)");
  EXPECT_EQ(text("k", 2, 2), "rank = 2: expected a value in [0, 2)");
  EXPECT_EQ(Group::local(0).status().message(), "size = 0: expected a value in [1, 1024]");
  EXPECT_EQ(Group::local(-3).status().message(), "size = -3: expected a value in [1, 1024]");
  EXPECT_STREQ(Group::self().transport(), "self");
  EXPECT_EQ(Group::self().size(), 1);
  EXPECT_STREQ((*Group::local(2))[1].transport(), "local");
  EXPECT_EQ((*Group::local(2))[1].rank(), 1);
  EXPECT_STREQ(Group::shm("k", 1, 2)->transport(), "shm");
}

TEST(Message, MalformedBodiesReadAsEmpty) {
  const std::string body = Writer().number(7).text("text").body();
  Reader whole(body);
  EXPECT_EQ(whole.number(), 7u);
  EXPECT_EQ(whole.text(), "text");
  EXPECT_TRUE(whole.ok());
  for (size_t cut = 0; cut < body.size(); ++cut) {
    Reader reader(std::string_view(body).substr(0, cut));
    reader.number();
    reader.text();
    EXPECT_FALSE(reader.ok()) << cut;
  }
}

}  // namespace
}  // namespace megamoe::test
